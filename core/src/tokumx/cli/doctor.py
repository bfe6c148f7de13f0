"""`tokumx doctor`: what this installation has, and what it lacks."""

import json
import os
import platform
import shutil
from importlib import metadata
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.table import Table

from tokumx import native
from tokumx.contract import current_device
from tokumx.dispatch import tuned

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def doctor(as_json: AsJson = False) -> None:
    """Show versions, the device, the native kernels, and where tuned records lie.

    Exit status 0 whatever is missing: everything has a portable form.
    """
    findings = _findings()
    if as_json:
        typer.echo(json.dumps(findings, indent=1))
        return
    table = Table(show_header=False, box=None)
    for name, text in findings.items():
        table.add_row(name, text)
    Console(soft_wrap=True, markup=False).print(table)


_ADVICE = " Install a C++17 compiler, then: pip install --force-reinstall tokumx"


def _findings() -> dict[str, str]:
    return {
        "tokumx": metadata.version("tokumx"),
        "python": platform.python_version(),
        "jax": f"{jax.__version__}, jaxlib {metadata.version('jaxlib')}",
        "device": str(current_device()),
        "native kernels": _native(),
        "tuned records": _tuned(),
    }


def _native() -> str:
    found = native.library()
    if found is None:
        compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
        advice = "" if any(map(shutil.which, compilers)) else _ADVICE
        return f"missing: {native.why_unavailable()}.{advice}"
    sets = ", ".join(found.instruction_sets)
    return (
        f"{native.instruction_set()} in use, of {sets}; {native.threads()} threads; "
        f"XLA FFI {found.ffi_version[0]}.{found.ffi_version[1]}; {found.path}"
    )


def _tuned() -> str:
    layers = [f"{t.name}: {len(t.records)} records" for t in tuned.tables()]
    return "; ".join(layers)
