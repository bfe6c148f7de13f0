"""The native library: found, loaded, refused, and built with the right headers."""

import ctypes
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import jax
import pytest

from tokumx import native
from tokumx.native import loader

OLDEST_JAXLIB = "0.10.2"
HEADERS = Path(__file__).parents[2] / "native/third_party/xla/xla/ffi/api"


def run(code, **environment):
    """What a fresh process prints."""
    result = subprocess.run(
        [sys.executable, "-c", f"from tokumx import native\n{code}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    return result.stdout.strip() or result.stderr.strip().splitlines()[-1]


def test_library_can_be_switched_off():
    reason = run("print(native.why_unavailable())", TOKUMX_NATIVE="0")
    assert reason == "native kernels are switched off by TOKUMX_NATIVE=0"


def test_library_uses_the_instruction_set_of_the_environment(skip_unless_native):
    skip_unless_native()
    lowest = native.library().instruction_sets[-1]
    assert run("print(native.instruction_set())", TOKUMX_NATIVE_ISA=lowest) == lowest


def test_library_refuses_an_unknown_instruction_set(skip_unless_native):
    skip_unless_native()
    known = ", ".join(native.library().instruction_sets)
    assert run("native.library()", TOKUMX_NATIVE_ISA="AVX9") == (
        f"ValueError: tokumx: TOKUMX_NATIVE_ISA must be among {known} on this "
        "processor; got 'AVX9'."
    )


@pytest.fixture
def fresh_load():
    loader._load.cache_clear()
    yield loader._load
    loader._load.cache_clear()


def test_library_that_was_not_built_is_a_reason_not_an_error(monkeypatch, fresh_load):
    monkeypatch.setattr(loader, "FILE", "absent.so")
    found, reason = fresh_load()
    assert found is None
    assert reason == (
        "the native library was not built, for want of a C++17 compiler when tokumx "
        "was installed; see tokumx doctor"
    )


def test_library_that_does_not_load_is_a_reason(monkeypatch, fresh_load, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(loader, "FILE", str(broken))
    found, reason = fresh_load()
    assert found is None
    assert reason.startswith("the native library does not load: ")


@pytest.mark.parametrize("theirs", [(0, 2), (1, 0)])
def test_library_is_not_registered_with_an_older_xla(
    monkeypatch, fresh_load, skip_unless_native, theirs
):
    skip_unless_native()
    loader._load.cache_clear()
    monkeypatch.setattr(loader, "_xla_ffi_version", lambda: theirs)
    found, reason = fresh_load()
    assert found is None
    assert reason == (
        f"the native library needs XLA FFI 0.3, this jaxlib has {theirs[0]}.{theirs[1]}"
    )


def test_headers_are_those_of_the_oldest_supported_jaxlib():
    if metadata.version("jaxlib") != OLDEST_JAXLIB:
        pytest.skip(f"compares with jaxlib {OLDEST_JAXLIB}")
    theirs = Path(jax.ffi.include_dir(), "xla/ffi/api")
    for header in HEADERS.iterdir():
        assert header.read_text() == (theirs / header.name).read_text(), header.name


def test_library_exports_nothing_but_its_own_names(skip_unless_native):
    """So that it cannot clash with another copy of Highway or of the C++ library."""
    skip_unless_native()
    try:
        symbols = subprocess.run(
            ["nm", "-D", "--defined-only", str(native.library().path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except FileNotFoundError:
        pytest.skip("nm is not installed")
    names = [line.split()[-1] for line in symbols.splitlines()]
    assert [n for n in names if not n.startswith("tokumx_")] == []


def test_scratch_grows_with_the_threads_and_is_not_negative(skip_unless_native):
    skip_unless_native()
    sizes = [
        native.call_c(
            "tokumx_paged_attention_scratch", *map(ctypes.c_int64, (8, 64, 64, n))
        )
        for n in (1, 2, 64)
    ]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
