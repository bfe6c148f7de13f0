"""Set-up before jax is imported: eight host devices, and the CPU only."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# A developer's own tuned records must not decide what is tested.
os.environ.pop("TOKUMX_TUNED", None)
os.environ["TOKUMX_CACHE_DIR"] = "/nonexistent/tokumx-tests"

import pytest

from tokumx import native


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
