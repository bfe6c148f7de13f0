"""`xla_gather`: moe_permute with a backward that gathers.

A token's gradient is the sum of those of its K rows, whose places are known:
no scatter, and the order of the sum is fixed.
"""

from tokumx.contract import Arrays, CallSpec, NoConfig, Outputs
from tokumx.ops.moe_routing.row_gathers import sum_of_rows, token_of_row
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
    k = arrays["target"].shape[1]
    return {"rows": token_of_row(arrays["x"], arrays["source"], k)}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: NoConfig,
) -> Outputs:
    del outputs, call, config
    return {"x": sum_of_rows(cotangents["rows"], arrays["target"])}
