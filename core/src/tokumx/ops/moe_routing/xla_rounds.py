"""`xla_rounds`: the best expert, then the best of the others, K times.

Each round is a maximum and the first index that has it: reductions, which
XLA vectorises on a CPU and splits over devices, where top_k is a library call.
"""

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import Arrays, CallSpec, DeviceSpec, NoConfig, Outputs
from tokumx.ops.moe_routing.scores import route
from tokumx.ops.moe_routing.untuned import (
    LOCAL,
    Config,
    heuristic_config,
    search_space,
)

__all__ = [
    "LOCAL",
    "Config",
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]

MAX_ROUNDS = 32  # each is written out in the program


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del device
    rounds = max(call.option("k"), call.option("top_groups") or 0)
    if rounds > MAX_ROUNDS:
        return f"k and top_groups must be <= {MAX_ROUNDS}, got {rounds}"
    return None


def forward(arrays: Arrays, call: CallSpec, config: NoConfig) -> Outputs:
    del config
    return route(arrays, call, _pick)


def _pick(values: jax.Array, count: int) -> jax.Array:
    size = values.shape[-1]
    lanes = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    picked = []
    for _ in range(count):
        best = values.max(-1, keepdims=True)
        first = jnp.where(values == best, lanes, size).min(-1, keepdims=True)
        picked.append(first)
        values = jnp.where(lanes == first, -jnp.inf, values)
    return jnp.concatenate(picked, -1)
