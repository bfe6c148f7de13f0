"""`cpu_native`: grouped products in C++, core/native/src/ragged_dot.cc.

A task is some columns of one group's matrix, packed once into the L2 cache, and
all rows of the group; four rows or fewer read the matrix where it lies:

  for each group g with rows, for each block of columns j of rhs[g]:
      out[rows of g, j] = lhs[rows of g] @ rhs[g][:, j] + bias[g, j]

Backward, with the cotangent ct: the same with rhs[g]^T, and the sum of outer
products of each group's rows. Accumulates in f32, 512 terms at a time.

Memory: a block of a matrix, of rows and of results, in f32, for each thread.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tokumx import native
from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.native import ragged_dot as kernel
from tokumx.ops.ragged_dot import xla_blocked
from tokumx.ops.ragged_dot.groups import bounds_of
from tokumx.ops.ragged_dot.row_blocks import RowBlocks, group_sums

Config = NoConfig
LOCAL = True
STAND_IN = xla_blocked


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    if device.platform != "cpu":
        return "runs on a CPU only"
    missing = native.why_unavailable()
    if missing is not None:
        return missing
    dtypes = {call["lhs"].dtype, call["rhs"].dtype, call.option("out_dtype")}
    if not dtypes <= set(kernel.DTYPES):
        return f"dtypes must be f32, bf16 or f16, got {', '.join(sorted(dtypes))}"
    return xla_blocked.unsupported(call, device)


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
    bias = None
    if "bias" in arrays:
        bias = arrays["bias"].astype(jnp.float32) * _owned(arrays)
    out = rows_by_matrices(
        arrays,
        arrays["lhs"],
        arrays["rhs"],
        bias,
        is_transposed=False,
        out_dtype=call.option("out_dtype"),
    )
    return {"out": out}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del outputs, call, config
    lhs, rhs, ct = arrays["lhs"], arrays["rhs"], cotangents["out"]
    gradients = {
        "lhs": rows_by_matrices(
            arrays, ct, rhs, None, is_transposed=True, out_dtype=lhs.dtype
        ),
        "rhs": outer_products(arrays, lhs, ct, rhs.dtype),
    }
    if "bias" in arrays:
        blocks = RowBlocks.of(arrays, problems_of(arrays), (256, 64))
        gradients["bias"] = group_sums(blocks, ct, jnp.float32) * _owned(arrays)
    return gradients


def rows_by_matrices(
    arrays: Arrays,
    lhs: jax.Array,
    rhs: jax.Array,
    bias: jax.Array | None,
    *,
    is_transposed: bool,
    out_dtype: jnp.dtype,
) -> jax.Array:
    """[B, M, N], of the groups that `arrays` name."""
    starts, ends = bounds_of(arrays)
    return kernel.ragged_dot(
        lhs,
        rhs,
        bias,
        starts,
        ends,
        problems=problems_of(arrays),
        is_transposed=is_transposed,
        out_dtype=out_dtype,
    )


def outer_products(
    arrays: Arrays, lhs: jax.Array, rhs: jax.Array, out_dtype: jnp.dtype
) -> jax.Array:
    """[B, G, K, N], of the groups that `arrays` name."""
    starts, ends = bounds_of(arrays)
    return kernel.ragged_contracting_dot(
        lhs, rhs, starts, ends, problems=problems_of(arrays), out_dtype=out_dtype
    )


def problems_of(arrays: Arrays) -> int:
    return max(x.shape[0] for x in arrays.values())


def _owned(arrays: Arrays) -> jax.Array:
    """1, or 0 on a device that does not own the bias; [B or 1, 1, 1] f32."""
    return arrays["bias_owner"].sum(1)[:, None, None].astype(jnp.float32)
