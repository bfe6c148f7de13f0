"""Calls the native grouped products.

B problems, M rows, G groups, K and N widths.
"""

import ctypes
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.native.loader import call_c, register, threads

DTYPES = ("float32", "bfloat16", "float16")


def ragged_dot(
    lhs: jax.Array,
    rhs: jax.Array,
    bias: jax.Array | None,
    starts: jax.Array,
    ends: jax.Array,
    *,
    problems: int,
    is_transposed: bool,
    out_dtype: Any,
) -> jax.Array:
    """[problems, M, N]: rows of lhs times their group's matrix, plus its bias.

    Args:
      lhs: [B, M, K]; here and below B is `problems`, or 1 if all share it.
      rhs: [B, G, K, N], or [B, G, N, K] if `is_transposed`.
      bias: [B, G, N] f32, or None.
      starts, ends: [B, G] int32; the rows of each group.
    """
    rows, depth = lhs.shape[1:]
    columns = rhs.shape[2 if is_transposed else 3]
    size = _scratch("tokumx_ragged_dot_scratch", problems, rows, depth, columns)
    out, _ = jax.ffi.ffi_call(
        register("tokumx_ragged_dot"),
        (jax.ShapeDtypeStruct((problems, rows, columns), out_dtype), size),
    )(
        lhs,
        rhs,
        jnp.zeros((0, 0, 0), jnp.float32) if bias is None else bias,
        starts,
        ends,
        threads=threads(),
        is_transposed=is_transposed,
    )
    return out


def ragged_contracting_dot(
    lhs: jax.Array,
    rhs: jax.Array,
    starts: jax.Array,
    ends: jax.Array,
    *,
    problems: int,
    out_dtype: Any,
) -> jax.Array:
    """[problems, G, K, N]: the sum of outer products of each group's rows.

    Args:
      lhs: [B, M, K]; here and below B is `problems`, or 1 if all share it.
      rhs: [B, M, N].
      starts, ends: [B, G] int32; the rows of each group.
    """
    shape = (problems, starts.shape[1], lhs.shape[2], rhs.shape[2])
    size = _scratch("tokumx_ragged_contracting_dot_scratch", lhs.shape[1], rhs.shape[2])
    out, _ = jax.ffi.ffi_call(
        register("tokumx_ragged_contracting_dot"),
        (jax.ShapeDtypeStruct(shape, out_dtype), size),
    )(lhs, rhs, starts, ends, threads=threads())
    return out


def _scratch(function: str, *sizes: int) -> jax.ShapeDtypeStruct:
    count = call_c(function, *map(ctypes.c_int64, (*sizes, threads())))
    return jax.ShapeDtypeStruct((count,), jnp.uint8)
