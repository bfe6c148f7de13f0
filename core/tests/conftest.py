"""Set-up before jax is imported: eight host devices, and the CPU only."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# A developer's own tuned records must not decide what is tested.
os.environ.pop("TOKUMX_TUNED", None)
os.environ["TOKUMX_CACHE_DIR"] = "/nonexistent/tokumx-tests"
