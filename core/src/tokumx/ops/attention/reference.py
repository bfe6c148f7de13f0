"""`xla`: attention as the definition reads. The gold standard of this op.

B batch, T query length, S key length, N query heads, K key heads, G = N // K,
H head dim, D value dim.

  logits = cap(scale * query . key + bias)        cap(x) = c * tanh(x / c)
  weights = exp(logits - max) over visible keys
  out = dropout(weights) @ value / (sum(weights) + exp(sink - max))

Memory: the whole [B, N, T, S] logits, in f32. The rows are normalised after
the product with the values, which saves one pass over them.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.ops.attention import masks
from tokumx.pallas_lib.dropout import keep_mask

Config = NoConfig
LOCAL = False


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del call, device
    return None


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
    query, key, value = arrays["query"], arrays["key"], arrays["value"]
    b, t, n, _ = query.shape
    k = key.shape[2]
    accumulate = jnp.promote_types(query.dtype, jnp.float32)
    grouped = query.reshape(b, t, k, n // k, query.shape[3])

    logits = jnp.einsum(
        "btkgh,bskh->bkgts", grouped, key, preferred_element_type=accumulate
    ).reshape(b, n, t, key.shape[1])
    logits = logits * call.option("scale")
    if "bias" in arrays:
        logits = logits + arrays["bias"].astype(accumulate)
    cap = call.option("logits_soft_cap")
    if cap is not None:
        logits = cap * jnp.tanh(logits / cap)
    visible = full_mask(arrays, call, t, key.shape[1])
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)

    row_max = lax.stop_gradient(logits.max(-1, keepdims=True, initial=-jnp.inf))
    sinks = arrays["sinks"][:, :, None, None] if "sinks" in arrays else None
    if sinks is not None:
        row_max = jnp.maximum(row_max, lax.stop_gradient(sinks))
    row_max = jnp.where(row_max == -jnp.inf, 0, row_max)
    weights = jnp.exp(logits - row_max)  # [B, N, T, S], f32
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sinks - row_max)
    weights = _dropped(weights, arrays, call)

    out = jnp.einsum(
        "bkgts,bskd->btkgd",
        weights.reshape(b, k, n // k, *weights.shape[2:]).astype(value.dtype),
        value,
        preferred_element_type=accumulate,
    ).reshape(b, t, n, value.shape[3])
    divisor = jnp.where(total == 0, 1, total)[..., 0].swapaxes(1, 2)  # [B, T, N]
    out = out / divisor[..., None]
    shift = jnp.broadcast_to(row_max, total.shape)[..., 0].swapaxes(1, 2)
    dead = total[..., 0].swapaxes(1, 2) == 0
    lse = jnp.where(dead, -jnp.inf, jnp.log(divisor) + shift)
    return {
        "out": out.astype(query.dtype),
        "lse": lse,
        "row_max": shift,
        "row_sum": lax.stop_gradient(jnp.where(dead, 0, divisor)),
    }


def full_mask(
    arrays: Arrays, call: CallSpec, query_length: int, key_length: int
) -> jax.Array | None:
    """[B or 1, N or 1, T, S] bool, or None if every query sees every key."""
    visible = masks.visible(
        masks.rules_of(call),
        masks.query_side(arrays, query_length),
        masks.key_side(arrays, key_length),
    )
    visible = None if visible is None else visible[:, None]
    mask = arrays.get("mask")
    if visible is None or mask is None:
        return mask if visible is None else visible
    return visible & mask


def _dropped(weights: jax.Array, arrays: Arrays, call: CallSpec) -> jax.Array:
    if "dropout_key" not in arrays:
        return weights
    rate = call.option("dropout_rate")
    t, s = weights.shape[2:]
    heads = arrays["dropout_heads"][:, :, None, None]  # [B or 1, N, 1, 1]
    rows = heads * jnp.uint32(t) + jnp.arange(t, dtype=jnp.uint32)[:, None]
    keep = keep_mask(
        arrays["dropout_key"][:, None, None, None],
        rows,
        jnp.arange(s, dtype=jnp.uint32),
        rate,
    )
    return jnp.where(keep, weights / (1 - rate), 0)
