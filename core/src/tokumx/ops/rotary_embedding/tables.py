"""Cosines and sines of the angles, which a model computes once for all layers.

T positions, R rotated numbers of a head.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tokumx.contract import ArraySpec
from tokumx.ops.rotary_embedding.scaling import OP, Scaling, scaled_frequencies

ArrayLike = Any
_WIDE = ("float32", "float64")


class RotaryTables(NamedTuple):
    """cos and sin of position times frequency: [..., T, R / 2] each, f32 or f64."""

    cos: jax.Array
    sin: jax.Array


def rotary_tables(
    positions: ArrayLike,
    rotary_dim: int,
    *,
    theta: float = 10_000.0,
    scaling: Scaling | None = None,
    frequencies: ArrayLike | None = None,
    dtype: Any = jnp.float32,
) -> RotaryTables:
    """What rotary_embedding needs of the positions; the same for every layer.

    angle[..., t, i] = positions[..., t] * frequencies[i]

    Args:
      positions: [..., T], integers, or floating where they are interpolated.
      rotary_dim: R, even; how many numbers of a head are rotated.
      theta: frequencies are theta ** (-2i / R), radians a position.
      scaling: how they are changed for a long context, and what cosines and
        sines are multiplied by; None means neither.
      frequencies: [R / 2] floating, in place of theta and scaling.
      dtype: f32 or f64, of angles and results.

    Returns:
      RotaryTables, [..., T, R / 2] each.

    Raises:
      ValueError: an argument is wrong.

    An angle has f32's relative error of about 1e-7: 0.01 radians at position 100,000
    of the fastest pair, as in the code that models are trained with.
    Source: Su et al. 2021, eq. 15, arXiv:2104.09864.
    """
    _check_rotary_dim(rotary_dim)
    dtype = jnp.dtype(dtype)
    if dtype.name not in _WIDE:
        raise ValueError(
            f"{OP}: tables must be of {', '.join(_WIDE)}; got {dtype.name}. "
            "The rotation rounds once, at its end."
        )
    positions = jnp.asarray(positions)
    is_number = jnp.issubdtype(positions.dtype, jnp.integer) or jnp.issubdtype(
        positions.dtype, jnp.floating
    )
    if positions.ndim < 1 or not is_number:
        raise ValueError(
            f"{OP}: positions must be integers or floating, [..., T]; got "
            f"positions={ArraySpec.of(positions)}. Pass [T] or [B, T]."
        )
    if frequencies is None:
        found, magnitude = scaled_frequencies(rotary_dim, theta, scaling)
        rates = jnp.asarray(found, dtype)
    else:
        rates, magnitude = _given(frequencies, rotary_dim, scaling, dtype), 1.0
    angles = positions.astype(dtype)[..., None] * rates
    return RotaryTables(jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude)


def _check_rotary_dim(rotary_dim: Any) -> None:
    is_right = isinstance(rotary_dim, int) and not isinstance(rotary_dim, bool)
    if not is_right or rotary_dim <= 0 or rotary_dim % 2:
        raise ValueError(
            f"{OP}: rotary_dim must be an even number > 0; got {rotary_dim!r}. "
            "Numbers are rotated in pairs."
        )


def _given(
    frequencies: ArrayLike, rotary_dim: int, scaling: Any, dtype: Any
) -> jax.Array:
    rates = jnp.asarray(frequencies)
    is_floating = jnp.issubdtype(rates.dtype, jnp.floating)
    if rates.shape != (rotary_dim // 2,) or not is_floating:
        raise ValueError(
            f"{OP}: frequencies must be floating, [rotary_dim / 2] = "
            f"[{rotary_dim // 2}]; got frequencies={ArraySpec.of(rates)}. "
            "Give each pair its own."
        )
    if scaling is not None:
        raise ValueError(
            f"{OP}: frequencies and scaling exclude each other; got "
            f"scaling={type(scaling).__name__}. Scale the frequencies yourself."
        )
    return rates.astype(dtype)
