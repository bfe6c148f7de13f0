"""Input distributions: kernels fail on the ones that tests leave out.

Drawn by numpy: the same numbers with every jax version, and nothing to compile.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], np.ndarray]


def _normal(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return rng.standard_normal(shape)


def _heavy_tailed(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Student's t with 3 degrees of freedom: rare entries of 10 and more."""
    return np.clip(rng.standard_t(3.0, shape), -100, 100)


def _activation(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Like a residual stream: a common offset and a few channels 30 times larger."""
    large = rng.random(shape[-1:]) < 0.05
    return 0.5 + rng.standard_normal(shape) * np.where(large, 30.0, 1.0)


def _zeros(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    del rng
    return np.zeros(shape)


def _huge(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Attention logits in the thousands: most rows have one winner, not all."""
    return 30 * rng.standard_normal(shape)


DISTRIBUTIONS: dict[str, Draw] = {
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
    drawn = DISTRIBUTIONS[name](np.random.default_rng(seed), shape)
    return jnp.asarray(np.asarray(drawn).astype(np.float32).astype(jnp.dtype(dtype)))
