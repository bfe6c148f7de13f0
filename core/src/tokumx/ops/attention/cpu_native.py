"""`cpu_native`: attention in C++, FlashAttention-2 with tiles in the L2 cache.

core/native/src/attention.cc. All masks of the op, in f32, bf16 and f16, computed
in f32; the native backward leaves the bias gradient to `xla_blocked`'s. Few query
rows over a plain cache are decoded by core/native/src/paged_attention.cc, which
reads keys where they lie: each sequence is then one page.

Memory: keys and values once more in f32 (packed; not when decoding); in the
backward also queries and cotangents, and query gradients as often as a head's
keys are shared out between threads.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tokumx import native
from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.native import paged_attention as kernel
from tokumx.ops.attention import masks, xla_blocked
from tokumx.ops.attention.block_step import is_scaled_product, logits_unit

Config = NoConfig
LOCAL = True
STAND_IN = xla_blocked
_DTYPES = ("float32", "bfloat16", "float16")
_MAX_DIM = 512  # of a head: a tile's rows must fit the L2 cache


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    if device.platform != "cpu":
        return "runs on a CPU only"
    missing = native.why_unavailable()
    if missing is not None:
        return missing
    if call["query"].dtype not in _DTYPES:
        return f"dtype must be f32, bf16 or f16, got {call['query'].dtype}"
    if "dropout_key" in call:
        return "has no dropout"
    if max(call["query"].size(3), call["value"].size(3)) > _MAX_DIM:
        return f"head dims must be <= {_MAX_DIM}"
    return xla_blocked.unsupported(call, device)


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    del call, device, direction
    return Config()


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del call, device, direction
    return [Config()]


def inference(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    if _is_decode(arrays):
        return _decode(arrays, call, for_backward=False)
    return forward(arrays, call, config)


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    if _is_decode(arrays):
        return _decode(arrays, call, for_backward=True)
    query, value = arrays["query"], arrays["value"]
    b, t, n, _ = query.shape
    out = (b, t, n, value.shape[3])
    rows = jax.ShapeDtypeStruct((b, t, n), jnp.float32)
    results = jax.ffi.ffi_call(
        native.register("tokumx_attention_forward"),
        (
            jax.ShapeDtypeStruct(out, query.dtype),
            jax.ShapeDtypeStruct(out, jnp.float32),
            rows,
            rows,
            rows,
            _scratch(arrays, is_backward=False),
        ),
    )(
        query,
        arrays["key"],
        value,
        *_mask_operands(arrays, call),
        _or_empty(arrays, "bias", query.dtype),
        _or_empty(arrays, "sinks", jnp.float32),
        **_attributes(arrays, call),
    )
    names = ("out", "out_wide", "lse", "row_max", "row_sum")
    return dict(zip(names, results[:-1], strict=True))


def _is_decode(arrays: Arrays) -> bool:
    """One block of rows a head, and positions that are indices."""
    _, t, n, _ = arrays["query"].shape
    rows = t * (n // arrays["key"].shape[2])
    own_sinks = "sinks" in arrays and arrays["sinks"].shape[0] > 1
    is_plain = not own_sinks and not (_NOT_IN_DECODE & arrays.keys())
    return is_plain and rows <= _DECODE_ROWS


_DECODE_ROWS = 96
_NOT_IN_DECODE = {
    "bias",
    "mask",
    "query_segment_ids",
    "query_seq_lengths",
    "query_positions",
    "key_value_positions",
}


def _decode(arrays: Arrays, call: CallSpec, *, for_backward: bool) -> Outputs:
    query, key = arrays["query"], arrays["key"]
    b, t, n, h = query.shape
    s = key.shape[1]
    rows = jnp.arange(b, dtype=jnp.int32)
    sinks = arrays["sinks"][0] if "sinks" in arrays else None

    def by_row(name: str, default: int) -> jax.Array:
        return jnp.broadcast_to(arrays.get(name, jnp.int32(default)), (b,))

    tables = kernel.Tables(
        first_row=rows * t,
        query_length=jnp.clip(by_row("query_seq_lengths", t), 0, t),
        kv_length=jnp.clip(by_row("key_value_seq_lengths", s), 0, s),
        position=by_row("query_offset", 0),
        page_table=rows[:, None],
    )
    upper, lower = _bounds(call)
    results = kernel.paged_attention(
        query.reshape(b * t, n, h),
        kernel.Caches(key, arrays["value"]),
        tables,
        kernel.Logits(
            scale=call.option("scale"),
            unit=logits_unit(call, has_bias=False),
            is_raw=is_scaled_product(call, has_bias=False),
            soft_cap=call.option("logits_soft_cap"),
            upper=upper,
            lower=lower,
        ),
        sinks,
        for_backward=for_backward,
    )
    # Without a backward three are empty, and nobody reads what stands for them.
    shapes = {"out_wide": (b, t, n, arrays["value"].shape[3])}
    return {
        name: x.reshape(b, t, *x.shape[1:])
        if x.size
        else jnp.zeros(shapes.get(name, (b, t, n)), x.dtype)
        for name, x in results._asdict().items()
    }


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del config
    if "bias" in arrays:
        blocks = xla_blocked.Config(block_q=256, block_kv=256, block_heads=8)
        return xla_blocked.backward(arrays, outputs, cotangents, call, blocks)
    operands = [arrays[name] for name in ("query", "key", "value")]
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    d_query, d_key, d_value, _ = jax.ffi.ffi_call(
        native.register("tokumx_attention_backward"),
        (*like, _scratch(arrays, is_backward=True)),
    )(
        *operands,
        *_mask_operands(arrays, call),
        *(outputs[name] for name in ("out_wide", "row_max", "row_sum")),
        cotangents["out"],
        cotangents["lse"],
        **_attributes(arrays, call),
    )
    gradients = {"query": d_query, "key": d_key, "value": d_value}
    if "sinks" in arrays:
        rows = xla_blocked.backward_rows(arrays, outputs, cotangents, jnp.float32)
        unit = logits_unit(call, has_bias=False)
        gradients["sinks"] = xla_blocked.sink_gradient(arrays["sinks"], rows, unit)
    return gradients


def _scratch(arrays: Arrays, *, is_backward: bool) -> jax.ShapeDtypeStruct:
    b, t, n, h = arrays["query"].shape
    s, k = arrays["key"].shape[1:3]
    dims = (b, t, s, n, k, h, arrays["value"].shape[3])
    size = native.call_c(
        "tokumx_attention_scratch",
        (ctypes.c_int64 * 7)(*dims),
        ctypes.c_int32(is_backward),
        ctypes.c_int64(native.threads()),
    )
    return jax.ShapeDtypeStruct((size,), jnp.uint8)


def _mask_operands(arrays: Arrays, call: CallSpec) -> list[jax.Array]:
    """In the order of attention_xla.cc; absent ones are empty."""
    rules = masks.rules_of(call)
    query = masks.query_side(arrays, arrays["query"].shape[1])
    key = masks.key_side(arrays, arrays["key"].shape[1])
    empty = jnp.zeros((0, 0), jnp.int32)
    positions = [query.position, key.position] if rules.uses_positions else [empty] * 2
    sides = (query.segment, key.segment, query.length, key.length)
    segments_and_lengths = [empty if x is None else x for x in sides]
    mask = arrays.get("mask")
    visible = jnp.zeros((0,) * 4, bool) if mask is None else mask
    return [*positions, *segments_and_lengths, visible]


def _or_empty(arrays: Arrays, name: str, dtype: Any) -> jax.Array:
    x = arrays.get(name)
    if x is None:
        return jnp.zeros((0,) * (4 if name == "bias" else 2), dtype)
    return x.astype(jnp.float32) if name == "sinks" else x


def _bounds(call: CallSpec) -> tuple[int | None, int | None]:
    """Keys at positions <= the query's + upper, >= the query's - lower are seen."""
    rules = masks.rules_of(call)
    uppers = [0] if rules.is_causal else []
    uppers += [] if rules.right is None else [rules.right]
    return min(uppers, default=None), rules.left


def _attributes(arrays: Arrays, call: CallSpec) -> dict[str, Any]:
    upper, lower = _bounds(call)
    as_float = jnp.float32.dtype.type
    return {
        "threads": native.threads(),
        "scale": as_float(call.option("scale")),
        "unit": as_float(logits_unit(call, has_bias="bias" in arrays)),
        "soft_cap": as_float(call.option("logits_soft_cap") or 0),
        "is_raw": is_scaled_product(call, has_bias="bias" in arrays),
        "has_upper": upper is not None,
        "has_lower": lower is not None,
        "upper": upper or 0,
        "lower": lower or 0,
    }
