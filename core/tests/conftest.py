"""Set-up before jax is imported: eight host devices, and the CPU only."""

import gc
import itertools
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# A developer's own tuned records must not decide what is tested.
os.environ.pop("TOKUMX_TUNED", None)
os.environ["TOKUMX_CACHE_DIR"] = "/nonexistent/tokumx-tests"

import jax
import pytest

from tokumx import native

_TESTS_BETWEEN_CLEARINGS = 50
_finished = itertools.count(1)


def pytest_runtest_teardown(nextitem):
    """Drops compiled programs now and then.

    Each keeps some memory mappings, and the kernel gives a process no more than
    65,530: after that the next compilation ends in a segmentation fault.
    """
    if next(_finished) % _TESTS_BETWEEN_CLEARINGS == 0 and nextitem is not None:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def skip_unless_native():
    """Skips with the library's own reason, where it was not built."""

    def skip() -> None:
        reason = native.why_unavailable()
        if reason is not None:
            pytest.skip(reason)

    return skip


@pytest.fixture
def without_native(monkeypatch):
    """Decides as if the native library had not been built."""
    missing = (None, "native kernels are switched off here")
    monkeypatch.setattr("tokumx.native.loader._load", lambda: missing)
