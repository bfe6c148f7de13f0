"""`xla_gather`: moe_unpermute as K gathers in one fused pass.

The backward, for the choice c = source[r] in row r:

  d rows[r]        = weights[c] * d out[c // K]
  d weights[t, j]  = d out[t] . rows[target[t, j]]
"""

import jax.numpy as jnp

from tokumx.contract import Arrays, CallSpec, NoConfig, Outputs
from tokumx.ops.moe_routing.row_gathers import (
    dots_with_rows,
    sum_of_rows,
    token_of_row,
)
from tokumx.ops.moe_routing.untuned import (
    LOCAL,
    Config,
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


def forward(arrays: Arrays, call: CallSpec, config: NoConfig) -> Outputs:
    del call, config
    rows = arrays["rows"]
    out = sum_of_rows(rows, arrays["target"], arrays["weights"])
    return {"out": out.astype(rows.dtype)}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: NoConfig,
) -> Outputs:
    del outputs, call, config
    rows, source = arrays["rows"], arrays["source"]
    accumulate = jnp.promote_types(rows.dtype, jnp.float32)
    k = arrays["target"].shape[1]
    weights = arrays["weights"].reshape(-1).astype(accumulate)
    by_row = weights.at[source].get(mode="promise_in_bounds")[:, None]  # [T * K, 1]
    d_out = token_of_row(cotangents["out"], source, k)
    return {
        "rows": by_row * d_out.astype(accumulate),
        "weights": dots_with_rows(cotangents["out"], rows, arrays["target"]),
    }
