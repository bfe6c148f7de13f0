"""Finds the library of native kernels, and hands its functions to XLA.

One binary serves every Python and every supported jax: it is built with the
oldest jaxlib's headers. XLA refuses, for the whole CPU backend, a handler that
was built with newer headers than its own, so the versions are compared before
anything is registered.
"""

import contextlib
import ctypes
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

FILE = "libtokumx_cpu.so"
DISABLE = "TOKUMX_NATIVE"  # set to 0 to do without
INSTRUCTION_SET = "TOKUMX_NATIVE_ISA"


@dataclass(frozen=True)
class Library:
    """The loaded library.

    Attributes:
      path: its file.
      handle: ctypes' view of it.
      ffi_version: (major, minor) of the XLA FFI it was built with.
      instruction_sets: what it has for this processor, best first.
    """

    path: Path
    handle: ctypes.CDLL
    ffi_version: tuple[int, int]
    instruction_sets: tuple[str, ...]


def library() -> Library | None:
    """The library, or None; then `why_unavailable` says why."""
    return _load()[0]


def why_unavailable() -> str | None:
    """Why native kernels cannot run in this process, or None if they can."""
    return _load()[1]


@functools.cache
def _load() -> tuple[Library | None, str | None]:
    if os.environ.get(DISABLE) == "0":
        return None, f"native kernels are switched off by {DISABLE}=0"
    path = Path(__file__).parent / FILE
    if not path.exists():
        return None, (
            "the native library was not built, for want of a C++17 compiler when "
            "tokumx was installed; see tokumx doctor"
        )
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"the native library does not load: {error}"
    found = _describe(path, handle)
    ours, theirs = found.ffi_version, _xla_ffi_version()
    if theirs is None or theirs[0] != ours[0] or theirs < ours:
        have = "unknown" if theirs is None else f"{theirs[0]}.{theirs[1]}"
        return None, (
            f"the native library needs XLA FFI {ours[0]}.{ours[1]}, this jaxlib has "
            f"{have}"
        )
    wanted = os.environ.get(INSTRUCTION_SET)
    if wanted and handle.tokumx_use_instruction_set(wanted.encode()):
        raise ValueError(
            f"tokumx: {INSTRUCTION_SET} must be among "
            f"{', '.join(found.instruction_sets)} on this processor; got {wanted!r}."
        )
    return found, None


def _describe(path: Path, handle: ctypes.CDLL) -> Library:
    handle.tokumx_instruction_sets.restype = ctypes.c_char_p
    handle.tokumx_use_instruction_set.argtypes = [ctypes.c_char_p]
    version = divmod(handle.tokumx_xla_ffi_version(), 1000)
    sets = handle.tokumx_instruction_sets().decode().split()
    return Library(path, handle, version, tuple(sets))


def _xla_ffi_version() -> tuple[int, int] | None:
    """The version that this jaxlib's runtime speaks, as its own headers say."""
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h")
    try:
        text = header.read_text()
    except OSError:
        return None
    numbers = [
        re.search(rf"^#define XLA_FFI_API_{part} (\d+)", text, re.MULTILINE)
        for part in ("MAJOR", "MINOR")
    ]
    if None in numbers:
        return None
    major, minor = (int(n[1]) for n in numbers if n)
    return major, minor


@functools.cache
def register(name: str) -> str:
    """Registers an exported handler with XLA, once; returns its name."""
    found = library()
    assert found is not None, why_unavailable()
    handler = jax.ffi.pycapsule(getattr(found.handle, name))
    jax.ffi.register_ffi_target(name, handler, platform="cpu")
    return name


def call_c(name: str, *args: Any) -> int:
    """Calls an exported function that returns an int64."""
    found = library()
    assert found is not None, why_unavailable()
    function = getattr(found.handle, name)
    function.restype = ctypes.c_int64
    return function(*args)


def threads() -> int:
    """How many threads a call may use: XLA's pool has one for each core."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def instruction_set() -> str:
    """The set in use; the library must be there."""
    found = library()
    assert found is not None, why_unavailable()
    return _in_use[0] or os.environ.get(INSTRUCTION_SET) or found.instruction_sets[0]


_in_use: list[str] = [""]


@contextlib.contextmanager
def use_instruction_set(name: str) -> Iterator[None]:
    """Calls run with this set or below, process-wide: for tests and comparisons.

    Raises:
      ValueError: the library has no such set for this processor.
    """
    found = library()
    assert found is not None, why_unavailable()
    if found.handle.tokumx_use_instruction_set(name.encode()):
        raise ValueError(
            f"tokumx: instruction set must be among "
            f"{', '.join(found.instruction_sets)} on this processor; got {name!r}."
        )
    before, _in_use[0] = _in_use[0], name
    try:
        yield
    finally:
        _in_use[0] = before
        back = before or os.environ.get(INSTRUCTION_SET) or ""
        found.handle.tokumx_use_instruction_set(back.encode())
