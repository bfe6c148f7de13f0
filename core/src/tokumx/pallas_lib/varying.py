"""Types of values inside shard_map, which say over which mesh axes they vary.

Loop carries must vary over the same axes before and after a step.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The mesh axes over which x may differ; none outside shard_map."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def vary_over(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """x, marked as varying over these axes too; its gradient is summed."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def filled(
    shape: tuple[int, ...], value: float, dtype: Any, like: jax.Array
) -> jax.Array:
    """A constant array that may be a loop carry next to `like`."""
    return vary_over(jnp.full(shape, value, dtype), varying_axes(like))
