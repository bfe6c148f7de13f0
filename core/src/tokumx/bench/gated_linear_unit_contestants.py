"""Who computes gated linear units: tokumx, and its peers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.bench.case import (
    SUBJECT,
    Absent,
    Arrays,
    Contestant,
    InProcess,
    InTorch,
)
from tokumx.ops.gated_linear_unit import gated_linear_unit

PLAIN, TOKAMAX, TORCH, REFERENCE = "plain XLA", "tokamax", "torch", "xla"
TORCH_COMPILED = "torch compiled"
_IN_TORCH = {
    TORCH: "gated_linear_unit",
    TORCH_COMPILED: "gated_linear_unit_compiled",
}
_SLOW_TORCH_BF16 = "bf16 is emulated on a CPU without AVX-512: minutes a case"


def tokumx_glu(
    arrays: Arrays, activation: str, implementation: str | None = None
) -> jax.Array:
    """The public function."""
    bias = None
    if "gate_bias" in arrays:
        bias = (arrays["gate_bias"], arrays["up_bias"])
    return gated_linear_unit(
        arrays["x"],
        _weights(arrays),
        bias=bias,
        down_weight=arrays.get("down_weight"),
        down_bias=arrays.get("down_bias"),
        activation=activation,
        implementation=implementation,
    )


def _weights(arrays: Arrays) -> Any:
    if "weights" in arrays:
        return arrays["weights"]
    return arrays["gate_weight"], arrays["up_weight"]


def plain_glu(arrays: Arrays, activation: str) -> jax.Array:
    """As a model writes it: everything in its own dtype."""
    x = arrays["x"]
    if "weights" in arrays:
        both = jnp.einsum("nd,dcf->ncf", x, arrays["weights"])
        gate, up = both[:, 0], both[:, 1]
    else:
        gate, up = x @ arrays["gate_weight"], x @ arrays["up_weight"]
    if "gate_bias" in arrays:
        gate, up = gate + arrays["gate_bias"], up + arrays["up_bias"]
    return _projected(_gated(gate, up, activation), arrays)


def _gated(gate: jax.Array, up: jax.Array, activation: str) -> jax.Array:
    if activation == "swiglu_oai":
        gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
        return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)
    return _JAX_NN[activation](gate) * up


_JAX_NN: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": jax.nn.gelu,
}


def _projected(hidden: jax.Array, arrays: Arrays) -> jax.Array:
    if "down_weight" in arrays:
        hidden = hidden @ arrays["down_weight"]
    return hidden + arrays["down_bias"] if "down_bias" in arrays else hidden


def _tokamax_glu(arrays: Arrays, activation: str) -> jax.Array:
    """Their gated unit, with a plain down projection."""
    import tokamax  # only where it takes part

    hidden = tokamax.gated_linear_unit(
        arrays["x"], _weights(arrays), activation=_JAX_NN[activation]
    )
    return _projected(hidden, arrays)


def _tokamax(activation: str, has_bias: bool) -> Contestant:
    if has_bias or activation not in _JAX_NN:
        return Absent(TOKAMAX, "it has no bias, and clips nothing")
    return InProcess(TOKAMAX, lambda a: _tokamax_glu(a, activation))


def glu_contestants(
    activation: str, has_bias: bool, has_torch: bool
) -> Sequence[Contestant]:
    return (
        InProcess(SUBJECT, lambda a: tokumx_glu(a, activation)),
        InProcess(PLAIN, lambda a: plain_glu(a, activation)),
        _tokamax(activation, has_bias),
        InProcess(REFERENCE, lambda a: tokumx_glu(a, activation, "xla")),
        *(
            InTorch(name, operation, {"activation": activation})
            if has_torch
            else Absent(name, _SLOW_TORCH_BF16)
            for name, operation in _IN_TORCH.items()
        ),
    )
