"""Rules about the repository itself."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "benchmarks",
    "core",
    "e2e_tests",
    "integrations",
    "pyproject.toml",
    "requirements",
}
OUTPUT_FOLDERS = {"__pycache__", "build", "dist", "out"}
MAX_PYTHON_LINES = 600


def files(folder: Path = ROOT) -> Iterator[Path]:
    """Every file but those of the environments, caches and outputs."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            is_output = path.name in OUTPUT_FOLDERS or path.name.endswith(".egg-info")
            is_hidden = path.name.startswith(".") and path.name != ".ci"
            if not is_output and not is_hidden:
                yield from files(path)
        elif not path.is_symlink():
            yield path


def relative(paths) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_layout_top_level_holds_only_known_entries():
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    assert found - TOP_LEVEL - OUTPUT_FOLDERS == set()


def test_layout_integrations_have_no_init_file_that_shadows_a_framework():
    folder = ROOT / "integrations"
    shadows = [*folder.glob("__init__.py"), *folder.glob("*/__init__.py")]
    assert relative(shadows) == []


def test_layout_python_files_are_short():
    long = [
        p
        for p in files()
        if p.suffix == ".py" and len(p.read_text().splitlines()) > MAX_PYTHON_LINES
    ]
    assert relative(long) == []


@pytest.mark.parametrize("name", ["py311", "py312"])
def test_requirements_every_pin_is_exact_and_has_a_reason(name):
    lines = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [p for p in pins if not re.fullmatch(r"[\w\[\]-]+==\S+  # \S.+", p)] == []


@pytest.mark.parametrize("name", ["py311", "py312"])
def test_requirements_lock_holds_every_pin_and_only_plain_ones(name):
    folder = ROOT / "requirements"
    lock = [
        line
        for line in (folder / f"{name}.lock").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert [
        line for line in lock if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", line)
    ] == []
    direct = re.findall(
        r"^([\w-]+)(?:\[.*\])?(==\S+)",
        (folder / f"{name}.in").read_text(),
        re.MULTILINE,
    )
    assert {pin.lower() + version for pin, version in direct} - set(lock) == set()


def test_requirements_torch_is_on_python_311_only():
    locks = {p.name: p.read_text() for p in (ROOT / "requirements").glob("*.lock")}
    assert [name for name, text in locks.items() if "\ntorch==" in text] == [
        "py311.lock"
    ]


def test_files_name_no_package_registry():
    address = re.compile(r"https?://\S*(registry|/simple\b|/whl\b)")
    option = re.compile(
        r"^\s*(-i|-f|--(extra-)?index-url|--find-links)\b", re.MULTILINE
    )
    folder = ROOT / "requirements"
    named = {p for p in files() if address.search(p.read_text(errors="ignore"))}
    named |= {p for p in files(folder) if option.search(p.read_text())}
    named |= {p for p in folder.glob("*.lock") if "://" in p.read_text()}
    assert relative(named) == []


def test_readme_names_only_targets_that_make_help_lists():
    output = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    listed = set(re.findall(r"^make ([\w-]+)", output, re.MULTILINE))
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"(?:`|^\s*)make ([a-z][\w-]*)", readme, re.MULTILINE))
    assert named
    assert named - listed == set()
