"""Representative operands for a call, for tuning and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec
from tokumx.ops.quantized_matmul.arguments import OP
from tokumx.quant import QArray, quantize


def call_of(
    x: jax.Array | jax.ShapeDtypeStruct, weights: QArray, activation: str | None
) -> CallSpec:
    """The call of x [G, T, K] and weights [K, N]; shapes are enough."""
    leading = {"x": x, "values": weights.values, "scales": weights.scales}
    if weights.zero_points is not None:
        leading["zero_points"] = weights.zero_points
    arrays = {
        n: jax.ShapeDtypeStruct((1, *a.shape), a.dtype) for n, a in leading.items()
    }
    return CallSpec.of(OP, arrays, options_of(weights, activation))


def options_of(weights: QArray, activation: str | None) -> dict[str, str | bool | None]:
    return {
        "qtype": weights.qtype,
        "is_packed": weights.packed_axis is not None,
        "activation_qtype": activation,
    }


def examples(dtype: str) -> list[CallSpec]:
    """A decode step and a prefill with int8, and with int4 in groups of 32."""
    weights = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    int8 = jax.eval_shape(lambda w: quantize(w, axis=0), weights)
    int4 = jax.eval_shape(lambda w: quantize(w, "int4", axis=0, group_size=32), weights)
    return [
        call_of(jax.ShapeDtypeStruct((1, rows, 4096), dtype), w, None)
        for w in (int8, int4)
        for rows in (1, 512)
    ]


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Normal floats; weights so that products have a variance of about 1."""
    rng = np.random.default_rng(seed)
    shapes = {n: [call[n].size(a) for a in range(call[n].ndim)] for n in call}
    k, n = shapes["x"][-1], shapes["values"][-1]
    _, groups, columns = shapes["scales"]
    wide = rng.standard_normal((k, n), np.float32) * np.float32(k**-0.5)
    weights = quantize(
        wide,
        call.option("qtype"),
        axis=0 if columns > 1 else (0, 1),
        group_size=k // groups if columns > 1 else None,
        symmetric="zero_points" not in call,
        packed=call.option("is_packed"),
    )
    arrays = {
        "x": jnp.asarray(rng.standard_normal(shapes["x"], np.float32), call["x"].dtype),
        "values": weights.values[None],
        "scales": weights.scales.astype(call["scales"].dtype)[None],
    }
    if weights.zero_points is not None:
        arrays["zero_points"] = weights.zero_points[None]
    return arrays
