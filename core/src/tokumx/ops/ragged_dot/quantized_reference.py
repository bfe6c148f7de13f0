"""`xla` of ragged_dot with quantized matrices: brings all of them back first.

  w[g] = (values[g] - zero_points[g]) * scales[g];  then as reference.py

Memory: all matrices in f32.
"""

from jax import lax

from tokumx.contract import Arrays, CallSpec, NoConfig, Outputs
from tokumx.ops.ragged_dot import reference
from tokumx.ops.ragged_dot.reference import (
    LOCAL,
    Config,
    heuristic_config,
    search_space,
    unsupported,
)
from tokumx.quant import QArray

__all__ = [
    "LOCAL",
    "Config",
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]


def forward(arrays: Arrays, call: CallSpec, config: NoConfig) -> Outputs:
    weights = lax.stop_gradient(weights_of(arrays, call).dequantize())
    lhs = arrays["lhs"].astype(weights.dtype)
    plain = dict(arrays) | {"lhs": lhs, "rhs": weights}
    return reference.forward(plain, call, config)


def weights_of(arrays: Arrays, call: CallSpec) -> QArray:
    """[B, G, K, N]."""
    return QArray(
        arrays["values"],
        arrays["scales"],
        arrays.get("zero_points"),
        call.option("qtype"),
        -2 if call.option("is_packed") else None,
    )
