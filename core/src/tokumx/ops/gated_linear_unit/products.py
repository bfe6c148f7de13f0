"""The matrix products of a gated linear unit, accumulated in f32 or f64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from tokumx.contract import Arrays


def accumulation_dtype(x: jax.Array) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32)


def product(
    equation: str, rows: jax.Array, weight: jax.Array, min_rows: int = 1
) -> jax.Array:
    """einsum of [..., K] rows with a weight, in the accumulation dtype.

    A single row is computed beside min_rows - 1 rows of zeros.
    """
    plain = functools.partial(
        jnp.einsum, equation, preferred_element_type=accumulation_dtype(rows)
    )
    operand = equation.split(",", maxsplit=1)[0].removeprefix("...")
    leading = rows.shape[: rows.ndim - len(operand)]
    if min_rows == 1 or any(d != 1 for d in leading):
        return plain(rows, weight)

    def padded(rows: jax.Array, weight: jax.Array) -> jax.Array:
        shape = rows.shape[len(leading) :]
        more = jnp.zeros((min_rows - 1, *shape), rows.dtype)
        several = jnp.concatenate([rows.reshape(1, *shape), more])
        out = plain(several, weight)[0]
        return out.reshape(*leading, *out.shape)

    return _vmapped_alone(padded, plain)(rows, weight)


def _vmapped_alone(single: Any, many: Any) -> Any:
    """`single`, but `many` under a vmap that makes rows of it: they need no zeros."""
    function = custom_vmap(single)

    @function.def_vmap
    def _(axis_size: int, in_batched: Any, *args: jax.Array) -> Any:
        del axis_size
        batched = jax.vmap(
            single if in_batched[1] else many,
            in_axes=tuple(0 if b else None for b in in_batched),
        )
        return batched(*args), True

    return function


def pre_activations(arrays: Arrays, min_rows: int = 1) -> tuple[jax.Array, jax.Array]:
    """gate and up, [..., F], in the accumulation dtype."""
    x = arrays["x"]
    if "weights" in arrays:
        both = product("...d,dcf->...cf", x, arrays["weights"], min_rows)
        gate, up = both[..., 0, :], both[..., 1, :]
    else:
        gate, up = (
            product("...d,df->...f", x, arrays[n], min_rows)
            for n in ("gate_weight", "up_weight")
        )
    if "gate_bias" in arrays:
        gate = gate + arrays["gate_bias"].astype(gate.dtype)
        up = up + arrays["up_bias"].astype(up.dtype)
    return gate, up


def weight_gradient(rows: jax.Array, cotangent: jax.Array, leading: int) -> jax.Array:
    """Sum over the leading axes of the outer products, [K, *rest]."""
    axes = tuple(range(leading))
    summed = functools.partial(
        jnp.tensordot,
        axes=(axes, axes),
        preferred_element_type=accumulation_dtype(rows),
    )
    if accumulation_dtype(rows) == rows.dtype:
        return summed(rows, cotangent)
    return _mapped_together(summed)(rows, cotangent)


def _mapped_together(fn: Any) -> Any:
    """Under vmap of one operand the other is repeated: XLA on a CPU has no kernel
    for the product that jax would make of it in bf16."""
    function = custom_vmap(fn)

    @function.def_vmap
    def _(axis_size: int, in_batched: Any, *args: jax.Array) -> Any:
        both = (
            x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, is_batched in zip(args, in_batched, strict=True)
        )
        return jax.vmap(fn)(*both), True

    return function
