"""`xla_blocked` of ragged_dot with quantized matrices: brings back one at a time.

  for each group g with rows:
      w = (values[g] - zero_points[g]) * scales[g], in f32              [K, N]
      for each block i of its rows:  out_i = lhs_i @ w + bias[g]

Backward: d_lhs_i = ct_i @ w^T; d_bias[g] = sum ct_i. See xla_blocked.py.
Memory: one group's matrix in f32, and a block of rows.
"""

from collections.abc import Sequence

from tokumx.contract import Arrays, CallSpec, DeviceSpec, Direction, Outputs
from tokumx.ops.ragged_dot.quantized_reference import weights_of
from tokumx.ops.ragged_dot.row_blocks import group_sums, rows_by_matrices
from tokumx.ops.ragged_dot.xla_blocked import (
    LOCAL,
    Config,
    blocks_and_dot,
    unsupported,
)
from tokumx.ops.ragged_dot.xla_blocked import search_space as plain_search_space

__all__ = [
    "LOCAL",
    "Config",
    "backward",
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    """Small blocks for a few rows a group; products in f32."""
    del device, direction
    is_few = call["lhs"].size(1) <= 16 * call["group_sizes"].size(1)
    return Config(blocks=(64, 8) if is_few else (256, 64, 16))


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    spaces = plain_search_space(call, device, direction)
    return [config for config in spaces if config.dot_dtype == "float32"]


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
        weights_of(arrays, call),
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
    del outputs
    blocks, dot = blocks_and_dot(arrays, config)
    ct = cotangents["out"]
    d_lhs = rows_by_matrices(
        blocks,
        dot,
        ct,
        weights_of(arrays, call),
        None,
        over=1,
        out_dtype=arrays["lhs"].dtype,
    )
    gradients = {"lhs": d_lhs}
    if "bias" in arrays:
        sums = group_sums(blocks, ct, dot.accumulate)
        gradients["bias"] = sums * arrays["bias_owner"].sum(1)[:, None, None]
    return gradients
