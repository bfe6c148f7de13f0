"""`xla`: moe_unpermute as the definition reads.

Memory: a copy of the rows in the order of the tokens, [T, K, D].
"""

import jax.numpy as jnp

from tokumx.contract import Arrays, CallSpec, NoConfig, Outputs
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
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]


def forward(arrays: Arrays, call: CallSpec, config: NoConfig) -> Outputs:
    del call, config
    rows, target = arrays["rows"], arrays["target"]
    accumulate = jnp.promote_types(rows.dtype, jnp.float32)
    weights = arrays["weights"].astype(accumulate)[..., None]  # [T, K, 1]
    out = (weights * rows[target].astype(accumulate)).sum(1)
    return {"out": out.astype(rows.dtype)}
