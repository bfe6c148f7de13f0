"""What this machine can reach: the ceilings of the roofline, measured."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.bench.records import Ceilings
from tokumx.bench.timer import interleaved

_MATMUL_SIZE = 1024
_STREAM_BYTES = 256 << 20  # far more than any cache holds


def measure_ceilings() -> Ceilings:
    """The best of a few rounds, with all the cores of this process.

    Matmul: f32, 1024 x 1024 x 1024, by XLA. Bandwidth: a sum, which reads a
    large array once; a copy pays for fresh pages, and is slower.
    """
    x = jnp.ones((_MATMUL_SIZE, _MATMUL_SIZE), jnp.float32)
    stream = jnp.ones((_STREAM_BYTES // 4,), jnp.float32)
    timings = interleaved(
        {
            "matmul": _compiled(jnp.matmul, x, x),
            "read": _compiled(jnp.sum, stream),
        },
        rounds=10,
        min_sample_s=0.02,
        budget_s=5.0,
    )
    best = {name: min(t.samples_us) * 1e3 for name, t in timings.items()}  # ns
    return Ceilings(
        matmul=2 * _MATMUL_SIZE**3 / best["matmul"],
        bandwidth=_STREAM_BYTES / best["read"],
    )


def _compiled(function: Callable[..., Any], *args: jax.Array) -> Callable[[], Any]:
    compiled = jax.jit(function).lower(*args).compile()
    return lambda: compiled(*args)
