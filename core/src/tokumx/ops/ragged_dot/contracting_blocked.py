"""`xla_blocked`: ragged_contracting_dot by a loop over groups and blocks of rows.

  for each group g:  out[g] = sum over its blocks i of lhs_i^T @ rhs_i    [K, N]

Backward, with the cotangent ct: d_lhs_i = rhs_i @ ct[g]^T; d_rhs_i = lhs_i @ ct[g].

See row_blocks.py for the blocks, and xla_blocked.py for the config.
Memory: one group's sum in f32, and a block of rows of both operands.
"""

from tokumx.contract import Arrays, CallSpec, Outputs
from tokumx.ops.ragged_dot.row_blocks import outer_products, rows_by_matrices
from tokumx.ops.ragged_dot.xla_blocked import (
    LOCAL,
    Config,
    blocks_and_dot,
    heuristic_config,
    search_space,
    unsupported,
)

__all__ = [
    "LOCAL",
    "Config",
    "backward",
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    blocks, dot = blocks_and_dot(arrays, config)
    lhs, rhs = arrays["lhs"], arrays["rhs"]
    return {"out": outer_products(blocks, dot, lhs, rhs, call.option("out_dtype"))}


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
    return {
        "lhs": rows_by_matrices(
            blocks, dot, rhs, ct, None, over=1, out_dtype=lhs.dtype
        ),
        "rhs": rows_by_matrices(
            blocks, dot, lhs, ct, None, over=0, out_dtype=rhs.dtype
        ),
    }
