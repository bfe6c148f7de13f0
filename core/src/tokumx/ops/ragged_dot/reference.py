"""`xla`: ragged_dot as the definition reads. The gold standard of this op.

M rows, G groups, each with a [K, N] matrix.

  out[m] = lhs[m] @ rhs[g] + bias[g]  for m in group g;  0 for m in no group

Every group's product is computed for all rows, and kept for its own: G times
the work that is needed. Memory: one [M, K] and one [M, N] more.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.ops.ragged_dot.groups import bounds_of
from tokumx.pallas_lib.varying import filled

Config = NoConfig
LOCAL = False


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del call, device
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    del call, device, direction
    return Config()


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del call, device, direction
    return [Config()]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    lhs, rhs = arrays["lhs"][0], arrays["rhs"][0]
    accumulate = jnp.promote_types(lhs.dtype, jnp.float32)
    row = jnp.arange(lhs.shape[0])[:, None]
    bias = _bias(arrays, accumulate)

    # The backward computes the masked rows again: G times lhs is too much to keep.
    @jax.checkpoint
    def one_group(out: jax.Array, group: tuple[jax.Array, ...]) -> jax.Array:
        start, end, matrix, bias = group
        is_own = (row >= start) & (row < end)
        # A row of no group may hold anything, NaN too.
        own = jnp.where(is_own, lhs, 0)
        product = jnp.matmul(own, matrix, preferred_element_type=accumulate)
        return jnp.where(is_own, product + bias, out)

    zeros = filled((lhs.shape[0], rhs.shape[2]), 0, accumulate, lhs)
    starts, ends = bounds_of(arrays)
    groups = (starts[0], ends[0], rhs, bias)
    out, _ = lax.scan(lambda out, g: (one_group(out, g), None), zeros, groups)
    return {"out": out.astype(call.option("out_dtype"))[None]}


def _bias(arrays: Arrays, accumulate: jnp.dtype) -> jax.Array:
    """[G, 1 or N]; zero on a device that does not own it."""
    if "bias" not in arrays:
        return filled((arrays["rhs"].shape[1], 1), 0, accumulate, arrays["rhs"])
    return arrays["bias"][0].astype(accumulate) * arrays["bias_owner"].sum()
