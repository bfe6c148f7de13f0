"""Calls the native norms of rows.

B problems, N rows of each, D numbers of a row.
"""

import ctypes
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.native.loader import call_c, register, threads

DTYPES = ("float32", "bfloat16", "float16")


def row_norm(
    x: jax.Array,
    residual: jax.Array | None,
    scale: jax.Array | None,
    bias: jax.Array | None,
    *,
    eps: float,
    is_centered: bool,
) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array | None]:
    """out, x + residual, rstd and mean; None for what there is not.

    Args:
      x, residual: [B, N, D].
      scale, bias: [B or 1, D] f32, or None.
      eps: added to the mean of squares.
      is_centered: the mean is subtracted first.
    """
    rows = jax.ShapeDtypeStruct(x.shape, x.dtype)
    statistic = jax.ShapeDtypeStruct(x.shape[:2], jnp.float32)
    out, total, rstd, mean = jax.ffi.ffi_call(
        register("tokumx_row_norm"),
        (
            rows,
            _nothing(rows) if residual is None else rows,
            statistic,
            statistic if is_centered else _nothing(statistic),
        ),
    )(
        x,
        _or_empty(residual, rows),
        _or_empty(scale, statistic),
        _or_empty(bias, statistic),
        threads=threads(),
        eps=np.float32(eps),
        is_centered=is_centered,
    )
    return (
        out,
        None if residual is None else total,
        rstd,
        mean if is_centered else None,
    )


def row_norm_backward(
    total: jax.Array,
    ct: jax.Array,
    ct_total: jax.Array | None,
    scale: jax.Array | None,
    rstd: jax.Array,
    mean: jax.Array | None,
    *,
    has_bias: bool,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Gradients of the rows, and of scale and bias for each problem, [B, D] f32.

    Args:
      total: [B, N, D], what was normalized.
      ct, ct_total: the same; cotangents of out, and of total or None.
      scale: [B or 1, D] f32, or None.
      rstd, mean: [B, N] f32; mean None where it was not subtracted.
      has_bias: its gradient is wanted.
    """
    problems, rows, columns = total.shape
    sizes = problems, rows, columns, threads()
    scratch = call_c("tokumx_row_norm_backward_scratch", *map(ctypes.c_int64, sizes))
    like = jax.ShapeDtypeStruct(total.shape, total.dtype)
    sums = jax.ShapeDtypeStruct((problems, columns), jnp.float32)
    dx, d_scale, d_bias, _ = jax.ffi.ffi_call(
        register("tokumx_row_norm_backward"),
        (
            like,
            _nothing(sums) if scale is None else sums,
            sums if has_bias else _nothing(sums),
            jax.ShapeDtypeStruct((scratch,), jnp.uint8),
        ),
    )(
        total,
        ct,
        _or_empty(ct_total, like),
        _or_empty(scale, sums),
        rstd,
        _or_empty(mean, sums),
        threads=threads(),
    )
    return (
        dx,
        None if scale is None else d_scale,
        d_bias if has_bias else None,
    )


def _nothing(like: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((0,) * len(like.shape), like.dtype)


def _or_empty(x: jax.Array | None, like: Any) -> jax.Array:
    return jnp.zeros((0,) * len(like.shape), like.dtype) if x is None else x
