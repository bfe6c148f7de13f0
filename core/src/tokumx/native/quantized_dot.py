"""Calls the native products with quantized matrices.

B problems, M rows, K inner size, N columns.
"""

import ctypes

import jax
import jax.numpy as jnp

from tokumx.native.loader import call_c, register, threads

DTYPES = ("float32", "bfloat16", "float16")


def quantized_dot(
    x: jax.Array,
    values: jax.Array,
    scales: jax.Array,
    zero_points: jax.Array | None,
    *,
    problems: int,
    is_transposed: bool,
) -> jax.Array:
    """x w, [problems, M, N], or x w^T, [problems, M, K]; f32.

    Args:
      x: [B, M, K], or [B, M, N] if `is_transposed`; here and below B is `problems`,
        or 1 if all share it.
      values: [B, K, N] int8 or fp8, or [B, K / 2, N] uint8, two numbers in a byte;
        groups are then of even size.
      scales: [B, S, N or 1] f32.
      zero_points: as scales, int8, or None.
    """
    rows = x.shape[1]
    depth, columns = values.shape[1:]
    if values.dtype == jnp.uint8:
        depth *= 2
    sizes = depth, columns, threads()
    scratch = call_c("tokumx_quantized_dot_scratch", *map(ctypes.c_int64, sizes))
    result = depth if is_transposed else columns
    out, _ = jax.ffi.ffi_call(
        register("tokumx_quantized_dot"),
        (
            jax.ShapeDtypeStruct((problems, rows, result), jnp.float32),
            jax.ShapeDtypeStruct((scratch,), jnp.uint8),
        ),
    )(
        x,
        values,
        scales,
        jnp.zeros((0, 0, 0), jnp.int8) if zero_points is None else zero_points,
        threads=threads(),
        is_transposed=is_transposed,
    )
    return out
