"""Checks the arguments and brings them to one canonical form.

Canonical: x and residual [1, G, T, D], normalized over D; scale and bias [1, D] in
the accumulation dtype. The leading axis is the problem axis, which vmap makes larger.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import ArraySpec

_DTYPES = ("float32", "bfloat16", "float16", "float64")


class Checked:
    """x and residual with the normalized axes last, and checks of the rest.

    Attributes:
      x: [..., D...], as given.
      accumulate: dtype of statistics, scale and bias.
    """

    def __init__(self, op: str, x: Any, residual: Any, axis: Any):
        self._op = op
        self.x = jnp.asarray(x)
        self._check_dtype(self.x)
        self._axes = self._checked_axes(axis)
        self._normal = tuple(self.x.shape[a] for a in self._axes)
        self.accumulate = jnp.promote_types(self.x.dtype, jnp.float32)
        self._residual = None if residual is None else self._checked(residual)

    def _fail(self, rule: str, got: Any, advice: str) -> ValueError:
        return ValueError(f"{self._op}: {rule}; got {got}. {advice}")

    def _check_dtype(self, x: jax.Array) -> None:
        if x.dtype.name not in _DTYPES:
            raise self._fail(
                f"x must be of {', '.join(_DTYPES)}",
                f"x={ArraySpec.of(x)}",
                "Cast it to one of them.",
            )

    def _checked_axes(self, axis: Any) -> tuple[int, ...]:
        """From 0 on, in the order given."""
        given = axis if isinstance(axis, Sequence) else (axis,)
        ndim = self.x.ndim
        got = f"axis={axis!r} x={ArraySpec.of(self.x)}"
        is_right = given and all(
            isinstance(a, int | np.integer)
            and not isinstance(a, bool)
            and -ndim <= a < ndim
            for a in given
        )
        axes = tuple(int(a) % ndim for a in given) if is_right else ()
        if not axes or len(set(axes)) < len(axes):
            raise self._fail(
                "axis must be an axis of x, or several different ones",
                got,
                "Axes count from 0, or from -1 at the end.",
            )
        if not all(self.x.shape[a] for a in axes):
            raise self._fail(
                "the normalized axes must not be empty",
                got,
                "A mean over nothing is not defined.",
            )
        return axes

    def _checked(self, residual: Any) -> jax.Array:
        residual = jnp.asarray(residual)
        if residual.shape != self.x.shape or residual.dtype != self.x.dtype:
            raise self._fail(
                "residual must have x's shape and dtype",
                f"x={ArraySpec.of(self.x)} residual={ArraySpec.of(residual)}",
                "Broadcast and cast it before the call.",
            )
        return residual

    def number(self, name: str, value: Any) -> float:
        """A finite Python number >= 0."""
        is_number = isinstance(value, int | float | np.number)
        if is_number and math.isfinite(value) and value >= 0:
            return float(value)
        got = repr(value) if is_number else type(value).__name__
        raise self._fail(
            f"{name} must be a Python number >= 0", got, "It is part of the program."
        )

    def parameter(self, name: str, value: Any, offset: int) -> jax.Array | None:
        """scale or bias plus `offset`: [1, D], or None."""
        if value is None:
            return None
        value = jnp.asarray(value)
        if value.shape != self._normal or value.dtype.name not in _DTYPES:
            raise self._fail(
                f"{name} must be floating, of the normalized axes' shape "
                f"{list(self._normal)}",
                f"{name}={ArraySpec.of(value)} x={ArraySpec.of(self.x)}",
                "Pass one number for each place of a row.",
            )
        return value.astype(self.accumulate).reshape(1, -1) + offset

    def arrays(self) -> dict[str, jax.Array | None]:
        residual = self._residual
        return {
            "x": self._as_rows(self.x),
            "residual": None if residual is None else self._as_rows(residual),
        }

    def _last(self) -> tuple[int, ...]:
        return tuple(range(-len(self._axes), 0))

    def _as_rows(self, x: jax.Array) -> jax.Array:
        """[1, G, T, D]; axes before the last two become one."""
        x = jnp.moveaxis(x, self._axes, self._last())
        leading = x.ndim - len(self._axes)
        if len(self._axes) > 1:
            x = jax.lax.collapse(x, leading)
        if leading < 2:
            return jnp.expand_dims(x, tuple(range(3 - leading)))
        return (jax.lax.collapse(x, 0, leading - 1) if leading > 2 else x)[None]

    def restored(self, y: jax.Array) -> jax.Array:
        """The inverse of what happened to x."""
        other = [d for a, d in enumerate(self.x.shape) if a not in self._axes]
        return jnp.moveaxis(y.reshape(*other, *self._normal), self._last(), self._axes)
