"""`cpu_native`: ragged paged attention in C++.

core/native/src/paged_attention.cc. The rows of a sequence (a group's heads of
each new token) meet its keys in tiles of 128, converted from any cache dtype as
they are read; a sequence with few rows is split by keys between the threads.

Memory: a tile of keys, values and logits a thread; no copy of the cache.
"""

from collections.abc import Sequence

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
from tokumx.errors import UnsupportedError
from tokumx.native import paged_attention as kernel
from tokumx.ops.ragged_paged_attention import xla_blocked
from tokumx.ops.ragged_paged_attention.pages import HEADS_MAJOR, Cache
from tokumx.ops.ragged_paged_attention.sequences import Rules, Sequences

Config = NoConfig
LOCAL = True
STAND_IN = xla_blocked
FORWARD_ONLY = True
_MAX_DIM = 512


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    if device.platform != "cpu":
        return "runs on a CPU only"
    missing = native.why_unavailable()
    if missing is not None:
        return missing
    if call["query"].dtype not in kernel.QUERY_DTYPES:
        return f"query must be f32, bf16 or f16, got {call['query'].dtype}"
    for name in call:
        if "cache" in name and call[name].dtype not in kernel.CACHE_DTYPES:
            return f"{name} may not be {call[name].dtype}"
    why_not = xla_blocked.unsupported(call, device)
    if why_not is None and max(_dims(call)) > _MAX_DIM:
        return f"head dims must be <= {_MAX_DIM}"
    return why_not


def _dims(call: CallSpec) -> list[int]:
    return [call[n].size(call[n].ndim - 1) for n in call if "cache" in n]


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


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    cache = Cache.of(arrays)
    pages = arrays["page_table"]
    sequences = Sequences.of(arrays, pages.shape[1] * cache.page_size)
    rules = Rules.of(call)
    scale, cap = call.option("scale"), call.option("logits_soft_cap")
    is_raw = cap is None and scale > 0
    rows = kernel.paged_attention(
        arrays["query"],
        kernel.Caches(
            cache.key,
            cache.value,
            any(name.endswith(HEADS_MAJOR) for name in arrays),
            _by_head(arrays.get("key_scale"), cache.kv_heads),
            _by_head(arrays.get("value_scale"), cache.kv_heads),
            cache.key_scale,
            cache.value_scale,
        ),
        kernel.Tables(
            sequences.first_row,
            sequences.query_length,
            sequences.kv_length,
            sequences.position,
            pages,
        ),
        kernel.Logits(
            scale, scale if is_raw else 1.0, is_raw, cap, rules.reach, rules.left
        ),
        arrays.get("sinks"),
        for_backward=False,
    )
    return {"out": rows.out, "lse": rows.lse}


def _by_head(scale: jax.Array | None, kv_heads: int) -> jax.Array | None:
    return None if scale is None else jnp.broadcast_to(scale, (kv_heads,))


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del arrays, outputs, cotangents, config
    raise UnsupportedError(
        f"{call.op}: cpu_native has no gradient, it is for serving; got a gradient "
        f"of {call}. Pass implementation='xla', which has one."
    )
