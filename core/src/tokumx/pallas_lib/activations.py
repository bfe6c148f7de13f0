"""Activation functions, elementwise; the caller chooses the dtype to work in."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def silu(x: jax.Array) -> jax.Array:
    """x * sigmoid(x)."""
    return jax.nn.silu(x)


def gelu(x: jax.Array) -> jax.Array:
    """x * Phi(x), by erf."""
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: jax.Array) -> jax.Array:
    """The approximation of gelu by tanh."""
    return jax.nn.gelu(x, approximate=True)


def relu(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x)


def sigmoid(x: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(x)


# Of a gated unit's gate, by the names that ops take.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "sigmoid": sigmoid,
}


def swiglu_oai(
    gate: jax.Array, up: jax.Array, limit: float = 7.0, alpha: float = 1.702
) -> jax.Array:
    """The gated unit of gpt-oss: (up + 1) * gate * sigmoid(alpha * gate).

    The gate is clipped from above to limit, up on both sides.
    """
    gate = jnp.minimum(gate, limit)
    up = jnp.clip(up, -limit, limit)
    return (up + 1) * gate * jax.nn.sigmoid(alpha * gate)
