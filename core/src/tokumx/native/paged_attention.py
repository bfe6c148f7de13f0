"""Calls the native paged attention; both attention ops decode with it.

R sequences, T tokens, N query heads, K key heads, H head dim, D value dim.
"""

import ctypes
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tokumx.native.loader import call_c, register, threads

QUERY_DTYPES = ("float32", "bfloat16", "float16")
CACHE_DTYPES = (*QUERY_DTYPES, "int8", "float8_e4m3fn", "float8_e5m2")


class Tables(NamedTuple):
    """Where each sequence's tokens and keys are; [R] int32 each, and the pages."""

    first_row: jax.Array
    query_length: jax.Array
    kv_length: jax.Array
    position: jax.Array  # of the first new token
    page_table: jax.Array  # [R, pages a sequence] int32


class Caches(NamedTuple):
    """Keys and values, [pages, slots, K, *], or with the heads before the slots.

    No value: the key's array holds both, side by side. Scales are [K], and by slot
    [pages, slots, K], f32; None for 1.
    """

    key: jax.Array
    value: jax.Array | None
    is_heads_major: bool = False
    key_scale: jax.Array | None = None
    value_scale: jax.Array | None = None
    key_slot_scale: jax.Array | None = None
    value_slot_scale: jax.Array | None = None


class Logits(NamedTuple):
    """What is static about the logits; see AttentionLogits in attention.h."""

    scale: float
    unit: float
    is_raw: bool
    soft_cap: float | None
    upper: int | None  # keys at positions <= the query's + upper are seen
    lower: int | None  # and those >= the query's - lower


class Rows(NamedTuple):
    """out [T, N, D]; the others are there if asked for: out in f32, and [T, N]."""

    out: jax.Array
    out_wide: jax.Array
    lse: jax.Array
    row_max: jax.Array
    row_sum: jax.Array


def paged_attention(
    query: jax.Array,
    caches: Caches,
    tables: Tables,
    logits: Logits,
    sinks: jax.Array | None,
    *,
    for_backward: bool,
) -> Rows:
    """Attention of query, [T, N, H]; rows of no sequence are zeros.

    Without `for_backward`, out_wide, row_max and row_sum are empty.
    """
    t, n, h = query.shape
    rows, d = tables.page_table.shape[0], _value_dim(caches, h)
    size = call_c(
        "tokumx_paged_attention_scratch", *map(ctypes.c_int64, (rows, h, d, threads()))
    )
    wide = (t, n, d) if for_backward else (0, 0, 0)
    extra = jax.ShapeDtypeStruct((t, n) if for_backward else (0, 0), jnp.float32)
    results = jax.ffi.ffi_call(
        register("tokumx_paged_attention"),
        (
            jax.ShapeDtypeStruct((t, n, d), query.dtype),
            jax.ShapeDtypeStruct(wide, jnp.float32),
            jax.ShapeDtypeStruct((t, n), jnp.float32),
            extra,
            extra,
            jax.ShapeDtypeStruct((size,), jnp.uint8),
        ),
    )(
        query,
        caches.key,
        jnp.zeros((0,) * 4, caches.key.dtype) if caches.value is None else caches.value,
        *tables,
        *map(
            _floats,
            (
                caches.key_scale,
                caches.value_scale,
                caches.key_slot_scale,
                caches.value_slot_scale,
                sinks,
            ),
        ),
        **_attributes(caches, logits),
    )
    return Rows(*results[:-1])


def _value_dim(caches: Caches, head_dim: int) -> int:
    if caches.value is None:
        return caches.key.shape[3] - head_dim
    return caches.value.shape[3]


def _floats(x: jax.Array | None) -> jax.Array:
    return jnp.zeros((0,), jnp.float32) if x is None else x.astype(jnp.float32)


def _attributes(caches: Caches, logits: Logits) -> dict[str, Any]:
    as_float = jnp.float32.dtype.type
    return {
        "threads": threads(),
        "heads_major": caches.is_heads_major,
        "scale": as_float(logits.scale),
        "unit": as_float(logits.unit),
        "soft_cap": as_float(logits.soft_cap or 0),
        "is_raw": logits.is_raw,
        "has_upper": logits.upper is not None,
        "has_lower": logits.lower is not None,
        "upper": logits.upper or 0,
        "lower": logits.lower or 0,
    }
