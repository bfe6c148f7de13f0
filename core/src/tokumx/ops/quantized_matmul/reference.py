"""`xla`: the definition, in plain jnp. The gold standard.

B problems (1, or more under vmap), G x T rows, K inner size, N columns.

  w = (values - zero_points) * scales                          [B, K, N], f32
  out = x @ w, or rounded(x) @ w                               [B, G, T, N], f32
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.quant import QArray, quantize

Config = NoConfig
LOCAL = False


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del call, device
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    del call, device, direction
    return Config()


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del call, device, direction
    return [Config()]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    weights = lax.stop_gradient(weights_of(arrays, call).dequantize())
    x = rounded(arrays["x"], call).astype(weights.dtype)
    return {"out": products("bgtk,bkn->bgtn", x, weights)}


def weights_of(arrays: Arrays, call: CallSpec) -> QArray:
    """[B, K, N]."""
    return QArray(
        arrays["values"],
        arrays["scales"],
        arrays.get("zero_points"),
        call.option("qtype"),
        -2 if call.option("is_packed") else None,
    )


def rounded(x: jax.Array, call: CallSpec) -> jax.Array:
    """x, or its rows rounded to few bits; the gradient is x's."""
    qtype = call.option("activation_qtype")
    if qtype is None:
        return x
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    found = quantize(wide, qtype, axis=-1, packed=False).dequantize()
    return lax.stop_gradient(found) + (wide - lax.stop_gradient(wide))


def products(subscripts: str, x: jax.Array, weights: jax.Array) -> jax.Array:
    """The einsum; problems that share one matrix are the rows of one product."""
    if weights.shape[0] == 1:
        subscripts = subscripts.replace(",b", ",", 1)
        weights = weights[0]
    elif x.shape[0] == 1:
        subscripts = subscripts[1:]
        x = x[0]
    return jnp.einsum(
        subscripts,
        x,
        weights,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=weights.dtype,
    )
