"""`xla_blocked`: a loop over groups, and over blocks of their rows, in plain jax.

  for each group g with rows:  for each block i of its rows:
      out_i = lhs_i @ rhs[g] + bias[g]                    [block, N]

Backward, with the cotangent ct:

  d_lhs_i = ct_i @ rhs[g]^T;  d_rhs[g] = sum_i lhs_i^T @ ct_i;  d_bias[g] = sum ct_i

See row_blocks.py for the blocks. Both loops are rolled, with trip counts known
at run time, so compile time does not depend on G, and work and weights read are
those of the rows there are.

Memory: one group's matrix (a copy: XLA on a CPU multiplies whole buffers only),
a block of rows and its product; in the backward one group's sum in f32.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import pydantic

from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    Outputs,
    cpu_flags,
)
from tokumx.contract import Config as BaseConfig
from tokumx.ops.ragged_dot.row_blocks import (
    BlockDot,
    DotDtype,
    RowBlocks,
    group_sums,
    outer_products,
    rows_by_matrices,
)

LOCAL = True
_BLOCKS = (
    (16,),
    (64, 8),
    (64, 16),
    (128,),
    (128, 32),
    (256, 64),
    (256, 64, 16),
    (512, 128),
    (512, 128, 32),
)


class Config(BaseConfig):
    """How a group's rows are cut, and what is multiplied.

    Attributes:
      blocks: rows of a block, descending; a group takes blocks of each size
        while they fit, and one of the last size for the rest. Sizes that are
        not below the number of rows are left out.
      dot_dtype: "float32" converts each block before its products, "input"
        multiplies in the operands' dtype and accumulates in f32.
    """

    blocks: tuple[pydantic.PositiveInt, ...]
    dot_dtype: DotDtype = "float32"

    @pydantic.field_validator("blocks")
    @classmethod
    def _descend(cls, blocks: tuple[int, ...]) -> tuple[int, ...]:
        if not blocks or list(blocks) != sorted(set(blocks), reverse=True):
            raise ValueError("blocks must be one or more sizes, each below the last")
        return blocks


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del device
    if not call.is_static:
        return "a dimension is symbolic"
    if any(0 in call[name].shape for name in call):
        return "an array is empty"
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    """Large blocks keep two threads busy, small ones leave few rows masked. A sum
    over blocks reads and writes [K, N] for each, so that small ones do not pay."""
    sums_blocks = (call.op == "ragged_dot") == (direction == "backward")
    blocks = (256, 64) if sums_blocks else (256, 64, 16)
    if call["lhs"].size(1) <= 16 * call["group_sizes"].size(1):
        blocks = (64, 16) if sums_blocks else (64, 8)
    return Config(blocks=blocks, dot_dtype=_dot_dtype(call, device))


def _dot_dtype(call: CallSpec, device: DeviceSpec) -> DotDtype:
    """The operands' own dtype where the device multiplies it natively."""
    if device.platform != "cpu":
        return "input"
    is_native = call["lhs"].dtype == "bfloat16" and (
        cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"}
    )
    return "input" if is_native else "float32"


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del device, direction
    is_narrow = call["lhs"].dtype in ("bfloat16", "float16")
    dtypes: Sequence[DotDtype] = ("float32", "input") if is_narrow else ("float32",)
    rows = call["lhs"].size(1)
    return [
        Config(blocks=blocks, dot_dtype=dtype)
        for blocks in _BLOCKS
        for dtype in dtypes
        if blocks[0] < 2 * rows or blocks == _BLOCKS[0]
    ]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    blocks, dot = blocks_and_dot(arrays, config)
    bias = None
    if "bias" in arrays:
        owned = arrays["bias_owner"].sum(1)[:, None, None]
        bias = arrays["bias"].astype(dot.accumulate) * owned.astype(dot.accumulate)
    out = rows_by_matrices(
        blocks,
        dot,
        arrays["lhs"],
        arrays["rhs"],
        bias,
        over=0,
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
    del outputs, call
    blocks, dot = blocks_and_dot(arrays, config)
    lhs, rhs, ct = arrays["lhs"], arrays["rhs"], cotangents["out"]
    gradients = {
        "lhs": rows_by_matrices(
            blocks, dot, ct, rhs, None, over=1, out_dtype=lhs.dtype
        ),
        "rhs": outer_products(blocks, dot, lhs, ct, rhs.dtype),
    }
    if "bias" in arrays:
        sums = group_sums(blocks, ct, dot.accumulate)
        gradients["bias"] = sums * arrays["bias_owner"].sum(1)[:, None, None]
    return gradients


def blocks_and_dot(arrays: Arrays, config: Config) -> tuple[RowBlocks, BlockDot]:
    batch = max(x.shape[0] for x in arrays.values())
    blocks = RowBlocks.of(arrays, batch, config.blocks)
    accumulate = jnp.promote_types(arrays["lhs"].dtype, jnp.float32)
    return blocks, BlockDot(config.dot_dtype, accumulate)
