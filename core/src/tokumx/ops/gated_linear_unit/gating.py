"""From the two pre-activations to the hidden values, elementwise.

Everything here works in the accumulation dtype, f32 for narrower inputs.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec
from tokumx.pallas_lib.activations import ACTIVATIONS

SWIGLU_OAI = "swiglu_oai"
ACTIVATION_NAMES = (*ACTIVATIONS, SWIGLU_OAI)


def gated(gate: jax.Array, up: jax.Array, call: CallSpec) -> jax.Array:
    """hidden, as the op's docstring defines it."""
    activation, limit = call.option("activation"), call.option("limit")
    if limit is not None:
        gate = _at_most(gate, limit)
        up = -_at_most(-_at_most(up, limit), limit)
    if activation == SWIGLU_OAI:
        return gate * jax.nn.sigmoid(call.option("alpha") * gate) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


def _at_most(x: jax.Array, limit: float) -> jax.Array:
    """Of jnp.minimum the gradient at the limit would be a half; here it is one."""
    return jnp.where(x > limit, limit, x)


def narrowed(
    gate: jax.Array, up: jax.Array, dtype: Any, call: CallSpec
) -> tuple[jax.Array, jax.Array]:
    """The pre-activations in a dtype for the backward to compute slopes from.

    A slope jumps at the limit, so a value stays on its side of it: rounded
    across, it would turn an element's gradient on or off. And it stays finite,
    since the slope at infinity is not a number.
    """
    if gate.dtype == dtype:
        return gate, up
    limit = call.option("limit")
    narrow_gate, narrow_up = _finite(gate, dtype), _finite(up, dtype)
    if limit is None:
        return narrow_gate, narrow_up
    narrow_gate = _on_its_side(gate, narrow_gate, limit)
    narrow_up = _on_its_side(up, narrow_up, limit)
    return narrow_gate, -_on_its_side(-up, -narrow_up, limit)


def _finite(x: jax.Array, dtype: Any) -> jax.Array:
    most = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -most, most).astype(dtype)


def _on_its_side(wide: jax.Array, narrow: jax.Array, limit: float) -> jax.Array:
    below, above = _neighbours(limit, narrow.dtype)
    return jnp.where(
        wide > limit, jnp.maximum(narrow, above), jnp.minimum(narrow, below)
    )


def _neighbours(limit: float, dtype: Any) -> tuple[Any, Any]:
    """The largest number of a dtype up to the limit, the smallest beyond it."""
    most = jnp.finfo(dtype).max
    if limit >= float(most):
        return most, most
    nearest = np.asarray(limit, dtype)
    up, down = np.asarray(np.inf, dtype), np.asarray(-np.inf, dtype)
    # As scalars of jax: numpy's would be promoted to f32.
    as_dtype = lambda x: jnp.asarray(x, dtype)  # noqa: E731
    if float(nearest) > np.float32(limit):
        return as_dtype(np.nextafter(nearest, down)), as_dtype(nearest)
    return as_dtype(nearest), as_dtype(np.nextafter(nearest, up))
