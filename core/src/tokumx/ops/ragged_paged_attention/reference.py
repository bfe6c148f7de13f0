"""`xla`: ragged paged attention as the definition reads. The gold standard.

T tokens, R sequences, W pages a sequence, K key heads, G query heads a key
head, N = K * G, H head dim, D value dim, S = W * page_size keys.

For each token, all pages of its sequence are gathered and attended to:

  logits[s] = cap(scale * query . key[s])     cap(x) = c * tanh(x / c)
  weights = exp(logits - max) over visible keys
  out = weights @ value / (sum(weights) + exp(sink - max))

Memory: the gathered keys and values, [S, K, H + D] for each of up to
TOKENS_AT_ONCE tokens. jax differentiates it.
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
from tokumx.ops.ragged_paged_attention.pages import Cache
from tokumx.ops.ragged_paged_attention.sequences import Rules, Sequences

Config = NoConfig
LOCAL = False
TOKENS_AT_ONCE = 16


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
    query, table = arrays["query"], arrays["page_table"]
    cache = Cache.of(arrays)
    tokens, keys = query.shape[0], table.shape[1] * cache.page_size
    sequences = Sequences.of(arrays, keys)
    rules = Rules.of(call)
    key_position = jnp.arange(keys, dtype=jnp.int32)

    def one_token(token: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, owner, position, in_use = token
        length = sequences.kv_length[owner]
        visible = rules.visible(position, key_position, length) & in_use
        logits, values = _logits_and_values(
            q, table[owner], visible, cache, arrays, call
        )
        sinks = arrays.get("sinks")
        sinks = None if sinks is None else sinks.reshape(logits.shape[:2])
        out, lse = _attend(logits, values, sinks)
        out = out.reshape(-1, out.shape[-1]).astype(query.dtype)
        return jnp.where(in_use, out, 0), jnp.where(in_use, lse.ravel(), -jnp.inf)

    rows = (query, *sequences.of_rows(tokens))
    if isinstance(tokens, int):
        out, lse = lax.map(one_token, rows, batch_size=TOKENS_AT_ONCE)
    else:  # a symbolic size cannot be cut into batches
        out, lse = jax.vmap(one_token)(rows)
    return {"out": out, "lse": lse}


def _logits_and_values(
    q: jax.Array,
    pages: jax.Array,
    visible: jax.Array,
    cache: Cache,
    arrays: Arrays,
    call: CallSpec,
) -> tuple[jax.Array, jax.Array]:
    """[K, G, S] logits, -inf where masked, and [K, S, D] values, 0 there.

    A slot that was never written may hold a NaN, which a weight of 0 would
    not remove, nor a gradient of 0.
    """
    accumulate = jnp.promote_types(q.dtype, jnp.float32)
    scales = [n for n in arrays if "_scale" in n]
    is_plain = not scales and cache.dtypes == {q.dtype}
    dtype = q.dtype if is_plain else accumulate
    block = cache.read(pages, dtype, dtype)
    key = _scaled(block.key, arrays.get("key_scale"), block.key_scale)
    value = _scaled(block.value, arrays.get("value_scale"), block.value_scale)
    key = jnp.where(visible[:, None], key, 0)
    value = jnp.where(visible[:, None], value, 0)
    grouped = q.reshape(cache.kv_heads, -1, q.shape[1])
    logits = jnp.einsum("kgh,ksh->kgs", grouped, key, preferred_element_type=accumulate)
    logits = logits * call.option("scale")
    cap = call.option("logits_soft_cap")
    if cap is not None:
        logits = cap * jnp.tanh(logits / cap)
    return jnp.where(visible, logits, -jnp.inf), value


def _scaled(
    x: jax.Array, head_scale: jax.Array | None, slot_scale: jax.Array | None
) -> jax.Array:
    """[K, S, *] times its scales, [K or 1] and [K, 1, S]."""
    if head_scale is not None:
        x = x * head_scale.astype(x.dtype)[:, None, None]
    if slot_scale is not None:
        x = x * slot_scale.astype(x.dtype)[:, 0, :, None]
    return x


def _attend(
    logits: jax.Array, values: jax.Array, sinks: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the last axis: ([K, G, D], log-sum-exp [K, G])."""
    row_max = lax.stop_gradient(logits.max(-1))
    if sinks is not None:
        row_max = jnp.maximum(row_max, lax.stop_gradient(sinks))
    row_max = jnp.where(row_max == -jnp.inf, 0, row_max)
    weights = jnp.exp(logits - row_max[..., None])
    total = weights.sum(-1)
    if sinks is not None:
        total = total + jnp.exp(sinks - row_max)
    out = jnp.einsum(
        "kgs,ksd->kgd",
        weights.astype(values.dtype),
        values,
        preferred_element_type=logits.dtype,
    )
    divisor = jnp.where(total == 0, 1, total)
    lse = jnp.where(total == 0, -jnp.inf, jnp.log(divisor) + row_max)
    return out / divisor[..., None], lse
