"""Rounds an array to few bits."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.quant.packing import pack_int4
from tokumx.quant.qarray import QTYPES, QArray, refuse, written

_NAME = "quantize"
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def quantize(
    x: Any,
    qtype: str = "int8",
    *,
    axis: int | Sequence[int] | None = None,
    group_size: int | None = None,
    symmetric: bool = True,
    packed: bool = True,
    scale_dtype: Any = None,
) -> QArray:
    """Rounds an array to 8 or 4 bits, with a scale for each tile.

    scale = max|x| / largest, value = round(x / scale)           symmetric
    scale = (max - min) / (2**bits - 1), value = round(x / scale) + zero_point
                                                                 otherwise

    Args:
      x: f32, bf16, f16 or f64; finite.
      qtype: "int8", "int4", "float8_e4m3fn" or "float8_e5m2".
      axis: the axis, or axes, along which numbers share a scale: for weights
        [K, N] axis=0 gives each column its own. None: one for the array.
      group_size: only so many in a row along `axis`, which is one then, share a
        scale; it must divide the axis.
      symmetric: zero is at 0, values in [-127, 127] or [-7, 7]; else zero may be
        anywhere, and all values are used. fp8 is symmetric.
      packed: two int4 values share a byte, along the second axis from the end, or
        the only one; its size is even then.
      scale_dtype: None means f32, or f64 for f64.

    Returns:
      QArray. Where all numbers of a tile are 0, its scale is 1. The error of a
      number is at most half a scale for integers, and 2**-4 (e4m3) or 2**-3 (e5m2)
      of itself for fp8 unless it is tiny beside its tile's largest.

    Raises:
      ValueError: an argument is wrong.

    Not differentiable: rounding has no slope.
    """
    x = jnp.asarray(x)
    axes = _checked(x, qtype, axis, group_size, symmetric)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    tiles = _tiles(x.shape, axes, group_size)
    tiled = jax.lax.stop_gradient(x).astype(wide).reshape(tiles)
    within = tuple(range(1, len(tiles), 2))
    storage, largest = QTYPES[qtype]
    if symmetric:
        scale = jnp.abs(tiled).max(within, keepdims=True) / largest
        zero = None
    else:
        # The range holds 0, so that 0 is exact.
        low = jnp.minimum(tiled.min(within, keepdims=True), 0)
        high = jnp.maximum(tiled.max(within, keepdims=True), 0)
        scale = (high - low) / (2 * largest + 1)
        zero = jnp.round(-largest - 1 - low / _not_zero(scale))
    dtype = jnp.dtype(wide if scale_dtype is None else scale_dtype)
    # The values fit the scale as it is kept, and one too small in f32 is none.
    kept = _not_zero(scale.astype(dtype))
    numbers = tiled / kept.astype(wide)
    if jnp.issubdtype(storage, jnp.integer):
        shift = 0 if zero is None else zero
        least = -largest if symmetric else -largest - 1
        numbers = jnp.clip(jnp.round(numbers) + shift, least, largest)
    else:
        numbers = jnp.clip(numbers, -largest, largest)
    values = numbers.astype(storage).reshape(x.shape)
    packed_axis = None
    if packed and qtype == "int4":
        packed_axis = -min(2, x.ndim)
        _check_even(x, packed_axis)
        values = pack_int4(values, x.ndim + packed_axis)
    zero_points = None if zero is None else zero.squeeze(within).astype(jnp.int8)
    return QArray(values, kept.squeeze(within), zero_points, qtype, packed_axis)


def _not_zero(scale: jax.Array) -> jax.Array:
    return jnp.where(scale == 0, 1, scale)


def _tiles(
    shape: tuple[int, ...], axes: tuple[int, ...], group_size: int | None
) -> list[int]:
    """[n0, n1, ...] -> [s0, n0 / s0, s1, n1 / s1, ...]."""
    sizes = []
    for i, n in enumerate(shape):
        within = (group_size or n) if i in axes else 1
        sizes += [n // within, within]
    return sizes


def _checked(
    x: jax.Array, qtype: Any, axis: Any, group_size: Any, symmetric: bool
) -> tuple[int, ...]:
    if qtype not in QTYPES:
        raise refuse(
            _NAME,
            f"qtype must be among {', '.join(QTYPES)}",
            repr(qtype),
            "Pass one of these names.",
        )
    if x.dtype.name not in _DTYPES or x.ndim == 0 or x.size == 0:
        raise refuse(
            _NAME,
            f"x must be {', '.join(_DTYPES)}, with an axis and not empty",
            f"x={written(x)}",
            "Cast it, or leave it as it is.",
        )
    if not symmetric and qtype.startswith("float8"):
        raise refuse(
            _NAME,
            "fp8 has no zero point",
            f"qtype={qtype!r} symmetric=False",
            "Pass symmetric=True.",
        )
    given = range(x.ndim) if axis is None else axis
    given = tuple(given) if isinstance(given, Sequence | range) else (given,)
    is_right = all(
        isinstance(a, int | np.integer) and -x.ndim <= a < x.ndim for a in given
    )
    axes = tuple(int(a) % x.ndim for a in given) if is_right else ()
    if not axes or len(set(axes)) < len(axes):
        raise refuse(
            _NAME,
            "axis must be None, an axis of x, or several different ones",
            f"axis={axis!r} x={written(x)}",
            "Axes count from 0, or from -1 at the end.",
        )
    if group_size is not None:
        _check_group(x, axes, group_size)
    return axes


def _check_group(x: jax.Array, axes: tuple[int, ...], group_size: Any) -> None:
    is_number = isinstance(group_size, int | np.integer) and group_size > 0
    if len(axes) != 1 or not is_number or x.shape[axes[0]] % group_size:
        raise refuse(
            _NAME,
            "group_size needs one axis, whose size it divides",
            f"group_size={group_size!r} axis={axes} x={written(x)}",
            "Pad the array, or take another size.",
        )


def _check_even(x: jax.Array, axis: int) -> None:
    if x.shape[axis] % 2:
        raise refuse(
            _NAME,
            f"two int4 values share a byte along axis {axis}, whose size must be even",
            f"x={written(x)}",
            "Pass packed=False for a byte each.",
        )
