"""`xla_recompute`: portable, with a backward that keeps little.

The products are those of the definition. The forward keeps gate and up in the
operands' dtype; the backward computes hidden and the slopes from them anew,
which is elementwise, and rounds their cotangents to the operands' dtype before
the products, as a model in that dtype does:

  d_hidden = d_out w_down^T;  d_gate, d_up = slopes(gate, up) * d_hidden
  d_w_down = hidden^T d_out;  dx = d_gate w_gate^T + d_up w_up^T
  d_w_gate = x^T d_gate;      d_w_up = x^T d_up

With fused weights gate and up stay side by side, [..., 2, F], in every product:
nothing of the weights' size is sliced or transposed.

Memory: 2 * F elements a row between the passes; one hidden-sized f32 at a time.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pydantic

from tokumx.contract import Arrays, CallSpec, DeviceSpec, Direction, Outputs
from tokumx.contract import Config as BaseConfig
from tokumx.ops.gated_linear_unit.gating import gated, narrowed
from tokumx.ops.gated_linear_unit.products import (
    accumulation_dtype,
    pre_activations,
    product,
    weight_gradient,
)

LOCAL = False


class Config(BaseConfig):
    """How the products are computed.

    Attributes:
      min_rows: a single row is multiplied beside min_rows - 1 rows of zeros,
        for where a matrix-vector product is slower than a matrix product.
    """

    min_rows: pydantic.PositiveInt = 1


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del call, device
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    """XLA on a CPU converts the whole weight to f32 for one narrow row."""
    del direction
    is_narrow = call["x"].dtype in ("bfloat16", "float16")
    return Config(min_rows=2 if device.platform == "cpu" and is_narrow else 1)


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del device, direction
    x = call["x"]
    if not x.is_static or math.prod(x.size(a) for a in range(x.ndim - 1)) != 1:
        return []
    return [Config(min_rows=n) for n in (1, 2, 8)]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    dtype = arrays["x"].dtype
    gate, up = pre_activations(arrays, config.min_rows)
    out = gated(gate, up, call).astype(dtype)
    if "down_weight" in arrays:
        down = arrays["down_weight"]
        out = product("...f,fo->...o", out, down, config.min_rows)
    gate, up = narrowed(gate, up, dtype, call)
    return {"out": out, "gate": gate, "up": up}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    x = arrays["x"]
    dtype, wide = x.dtype, accumulation_dtype(x)
    leading = x.ndim - 1
    hidden, pull_back = jax.vjp(
        lambda gate, up: gated(gate, up, call),
        outputs["gate"].astype(wide),
        outputs["up"].astype(wide),
    )
    g = cotangents["out"].astype(dtype)
    gradients: Outputs = {}
    if "down_weight" in arrays:
        down = arrays["down_weight"]
        gradients["down_weight"] = weight_gradient(hidden.astype(dtype), g, leading)
        g = product("...o,fo->...f", g, down, config.min_rows)
    d_gate, d_up = pull_back(g.astype(wide))
    if "gate_bias" in arrays:
        rows = tuple(range(leading))
        gradients["gate_bias"] = d_gate.sum(rows)
        gradients["up_bias"] = d_up.sum(rows)
    d_gate, d_up = d_gate.astype(dtype), d_up.astype(dtype)
    return gradients | _projection_gradients(arrays, d_gate, d_up, config.min_rows)


def _projection_gradients(
    arrays: Arrays, d_gate: jax.Array, d_up: jax.Array, min_rows: int
) -> Outputs:
    """Gradients of x and of the two weights, or of the fused one."""
    x = arrays["x"]
    leading = x.ndim - 1
    if "weights" in arrays:
        both = jnp.stack([d_gate, d_up], -2)  # [..., 2, F]
        return {
            "x": product("...cf,dcf->...d", both, arrays["weights"], min_rows),
            "weights": _fused_weight_gradient(x, both, leading),
        }
    gate_weight, up_weight = arrays["gate_weight"], arrays["up_weight"]
    return {
        "x": product("...f,df->...d", d_gate, gate_weight, min_rows)
        + product("...f,df->...d", d_up, up_weight, min_rows),
        "gate_weight": weight_gradient(x, d_gate, leading),
        "up_weight": weight_gradient(x, d_up, leading),
    }


def _fused_weight_gradient(x: jax.Array, both: jax.Array, leading: int) -> jax.Array:
    """[D, 2, F] in the accumulation dtype.

    Narrow operands are multiplied apart: XLA on a CPU has no kernel for this
    product of bf16 into f32, and into bf16 it accumulates in bf16. The
    results have to be rounded anyway, which makes one pass with the stacking.
    """
    if accumulation_dtype(x) == x.dtype:
        return weight_gradient(x, both, leading)
    parts = [weight_gradient(x, both[..., i, :], leading) for i in (0, 1)]
    return jnp.stack(parts, 1)
