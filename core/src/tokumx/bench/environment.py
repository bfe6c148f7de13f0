"""Reads the machine and the software that a run happens on."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tokumx.bench.records import Environment
from tokumx.contract import current_device

_DISTRIBUTIONS = ("tokumx", "jax", "jaxlib", "tokamax", "numpy")
_VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "OMP_NUM_THREADS", "TOKUMX_TUNED")
_ABSENT = "not installed"


def read_environment(more_versions: Mapping[str, str]) -> Environment:
    """The environment now; more_versions are those other processes report."""
    device = current_device()
    return Environment(
        device=str(device),
        device_slug=device.slug,
        cores=usable_cores(),
        ram_gib=_ram_gib(),
        os=platform.platform(),
        load=os.getloadavg()[0],
        variables={n: os.environ[n] for n in _VARIABLES if n in os.environ},
        versions={"python": platform.python_version()}
        | {name: _version(name) for name in _DISTRIBUTIONS}
        | dict(more_versions),
        commit=_commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=shlex.join(["python", *sys.orig_argv[1:]]),
    )


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def _ram_gib() -> float:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return round(pages * size / 2**30, 1)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return _ABSENT


def _commit() -> str | None:
    """The checkout's commit, "-dirty" if it has changes; None outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True
        )
    except OSError:  # no git
        return None
    return found.stdout.strip() or None
