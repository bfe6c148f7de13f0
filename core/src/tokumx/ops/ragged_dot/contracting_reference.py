"""`xla`: ragged_contracting_dot as the definition reads. Its gold standard.

M rows, G groups.

  out[g] = own_g(lhs)^T @ own_g(rhs),  own_g(x)[m] = x[m] for m in group g, else 0

Every group's product runs over all rows: G times the work that is needed.
Memory: one [M, K] and one [M, N] more.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import Arrays, CallSpec, Outputs
from tokumx.ops.ragged_dot.groups import bounds_of
from tokumx.ops.ragged_dot.reference import (
    LOCAL,
    Config,
    heuristic_config,
    search_space,
    unsupported,
)

__all__ = [
    "LOCAL",
    "Config",
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    lhs, rhs = arrays["lhs"][0], arrays["rhs"][0]
    accumulate = jnp.promote_types(lhs.dtype, jnp.float32)
    dot = functools.partial(jnp.matmul, preferred_element_type=accumulate)
    row = jnp.arange(lhs.shape[0])[:, None]

    # The backward computes the masked rows again: G times lhs is too much to keep.
    @jax.checkpoint
    def one_group(bounds: Any) -> jax.Array:
        start, end = bounds
        is_own = (row >= start) & (row < end)
        out = dot(jnp.where(is_own, lhs, 0).T, jnp.where(is_own, rhs, 0))
        return out.astype(call.option("out_dtype"))

    starts, ends = bounds_of(arrays)
    return {"out": lax.map(one_group, (starts[0], ends[0]))[None]}
