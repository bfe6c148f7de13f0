"""`xla`: routing by lax.top_k, differentiated by jax. The gold standard.

The formulas are in scores.py.
"""

import jax
from jax import lax

from tokumx.contract import Arrays, CallSpec, NoConfig, Outputs
from tokumx.ops.moe_routing.scores import route
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
    del config
    return route(arrays, call, _pick)


def _pick(values: jax.Array, count: int) -> jax.Array:
    return lax.top_k(values, count)[1]
