"""Writes <name>.lock from <name>.in: every distribution pip would install.

Run it with the Python that the environment is for; pip resolves for that one:

    .venv/py311/bin/python requirements/lock.py py311
    .venv/py312/bin/python requirements/lock.py py312
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# What only the CUDA build of torch brings. The tests run on a CPU.
CUDA_ONLY = re.compile(r"nvidia-|cuda-|triton$")


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(requirements: Path) -> list[tuple[str, str]]:
    """(name, version) of all that pip would install in an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
    command += ["--ignore-installed", "--report", "-", "-r", str(requirements)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    found = [item["metadata"] for item in json.loads(out)["install"]]
    # A local version (2.13.0+cpu) exists in one index only, so it is dropped.
    return sorted(
        (normalized(m["name"]), m["version"].partition("+")[0]) for m in found
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(p.stem for p in HERE.glob("*.in")))
    name = parser.parse_args().name
    pins = resolve(HERE / f"{name}.in")
    cuda = [pin for pin, _ in pins if CUDA_ONLY.match(pin)]
    if cuda:
        sys.exit(
            f"lock: {name}.lock must hold no CUDA packages; got {', '.join(cuda)}. "
            "Let pip see a CPU build of torch (find-links in its configuration)."
        )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [
        f"# Made by lock.py from {name}.in, for Python {python}, Linux x86_64.",
        *(f"{pin}=={version}" for pin, version in pins),
    ]
    (HERE / f"{name}.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
