"""`cpu_native` of ragged_contracting_dot: core/native/src/ragged_dot.cc.

  out[g] = sum over rows m of g of outer(lhs[m], rhs[m])

A task is some columns of one group's rows of rhs, packed once, and all columns of
lhs. Backward: d_lhs[m] = rhs[m] @ ct[g]^T and d_rhs[m] = lhs[m] @ ct[g].

Memory: a block of the rows and of the result, in f32, for each thread.
"""

from tokumx.contract import Arrays, CallSpec, Outputs
from tokumx.ops.ragged_dot import contracting_blocked
from tokumx.ops.ragged_dot.cpu_native import (
    LOCAL,
    Config,
    heuristic_config,
    outer_products,
    rows_by_matrices,
    search_space,
    unsupported,
)

__all__ = [
    "LOCAL",
    "STAND_IN",
    "Config",
    "backward",
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]

STAND_IN = contracting_blocked


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    out_dtype = call.option("out_dtype")
    return {"out": outer_products(arrays, arrays["lhs"], arrays["rhs"], out_dtype)}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del outputs, call, config
    lhs, rhs, ct = arrays["lhs"], arrays["rhs"], cotangents["out"]
    return {
        "lhs": rows_by_matrices(
            arrays, rhs, ct, None, is_transposed=True, out_dtype=lhs.dtype
        ),
        "rhs": rows_by_matrices(
            arrays, lhs, ct, None, is_transposed=False, out_dtype=rhs.dtype
        ),
    }
