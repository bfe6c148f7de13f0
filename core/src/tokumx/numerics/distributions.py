"""Input distributions: kernels fail on the ones that tests leave out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Shape = tuple[int, ...]


def _normal(key: jax.Array, shape: Shape) -> jax.Array:
    return jax.random.normal(key, shape)


def _heavy_tailed(key: jax.Array, shape: Shape) -> jax.Array:
    """Student's t with 3 degrees of freedom: rare entries of 10 and more."""
    return jnp.clip(jax.random.t(key, 3.0, shape), -100, 100)


def _activation(key: jax.Array, shape: Shape) -> jax.Array:
    """Like a residual stream: a common offset and a few channels 30 times larger."""
    noise_key, channel_key = jax.random.split(key)
    large = jax.random.uniform(channel_key, shape[-1:]) < 0.05
    return 0.5 + jax.random.normal(noise_key, shape) * jnp.where(large, 30.0, 1.0)


def _zeros(key: jax.Array, shape: Shape) -> jax.Array:
    del key
    return jnp.zeros(shape)


def _huge(key: jax.Array, shape: Shape) -> jax.Array:
    """Attention logits in the thousands: most rows have one winner, not all."""
    return 30 * jax.random.normal(key, shape)


DISTRIBUTIONS: dict[str, Callable[[jax.Array, Shape], jax.Array]] = {
    "normal": _normal,
    "heavy_tailed": _heavy_tailed,
    "activation": _activation,
    "zeros": _zeros,
    "huge": _huge,
}


def sample(name: str, seed: int, shape: Shape, dtype: Any = jnp.float32) -> jax.Array:
    """An array of a named distribution.

    Raises:
      ValueError: no distribution has that name.
    """
    if name not in DISTRIBUTIONS:
        raise ValueError(
            f"numerics: distribution must be among {', '.join(DISTRIBUTIONS)}; "
            f"got {name!r}."
        )
    return DISTRIBUTIONS[name](jax.random.key(seed), shape).astype(dtype)
