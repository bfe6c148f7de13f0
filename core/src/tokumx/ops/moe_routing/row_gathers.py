"""Gathers of whole rows whose places are known to be valid.

T tokens, D width, K rows a token. Each loop over K is written out: XLA fuses
it into one pass that reads each row once.
"""

import jax
import jax.numpy as jnp


def token_of_row(x: jax.Array, source: jax.Array, k: int) -> jax.Array:
    """[T, D], [T * K] -> [T * K, D]: the token of each row."""
    return _rows(x, source // k)


def sum_of_rows(
    rows: jax.Array, target: jax.Array, weights: jax.Array | None = None
) -> jax.Array:
    """[T * K, D], [T, K] -> [T, D], f32 (f64 for f64): each token's rows summed."""
    accumulate = jnp.promote_types(rows.dtype, jnp.float32)
    out = jnp.zeros((target.shape[0], rows.shape[1]), accumulate)
    for j in range(target.shape[1]):
        term = _rows(rows, target[:, j]).astype(accumulate)
        if weights is not None:
            term = term * weights[:, j : j + 1].astype(accumulate)
        out = out + term
    return out


def dots_with_rows(x: jax.Array, rows: jax.Array, target: jax.Array) -> jax.Array:
    """[T, D], [T * K, D], [T, K] -> [T, K]: each token times each of its rows."""
    accumulate = jnp.promote_types(rows.dtype, jnp.float32)
    wide = x.astype(accumulate)
    dots = [
        (wide * _rows(rows, target[:, j]).astype(accumulate)).sum(1)
        for j in range(target.shape[1])
    ]
    return jnp.stack(dots, 1)


def _rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    return x.at[indices].get(mode="promise_in_bounds")
