"""Public API of attention: arguments, their checks, and the OpSpec.

B batch, T query length, S key length, N query heads, K key heads, H head dim,
D value dim.
"""

from typing import Any

import jax

from tokumx.contract import (
    CallSpec,
    Config,
    Configs,
    DeviceSpec,
    Implementation,
    OpSpec,
    Ranking,
)
from tokumx.dispatch import Preference, call_op
from tokumx.ops.attention import (
    cpu_native,
    masks,
    reference,
    xla_blocked,
    xla_decode,
)
from tokumx.ops.attention.arguments import Checked
from tokumx.ops.attention.inputs import examples, make_arrays

ArrayLike = Any


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    implementation: Preference = None,
    return_residual: bool = False,
    query_offset: ArrayLike | int = 0,
    query_segment_ids: ArrayLike | None = None,
    key_value_segment_ids: ArrayLike | None = None,
    query_positions: ArrayLike | None = None,
    key_value_positions: ArrayLike | None = None,
    logits_soft_cap: float | None = None,
    sinks: ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_key: ArrayLike | None = None,
    config: Config | Configs | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Softmax attention; a superset of jax.nn.dot_product_attention.

    logits[n, t, s] = cap(scale * query[t, n] . key[s, k(n)] + bias[n, t, s])
    out[t, n] = sum_s softmax_s(logits[n, t, s]) * value[s, k(n)]

    The softmax runs over the keys a query may see: those that pass every one
    of mask, is_causal, local_window_size, segment ids and lengths. A query
    that sees no key gives zeros, and zero gradients.

    Args:
      query: [B, T, N, H] or [T, N, H]; f32, bf16, f16 or f64.
      key: [B, S, K, H] or [S, K, H], in query's dtype. N must be a multiple
        of K; query head n reads key head n // (N // K).
      value: [B, S, K, D] or [S, K, D], in query's dtype.
      bias: floating, 3-D or 4-D, broadcastable to [B, N, T, S]; added to the
        scaled logits before the soft cap. Has a gradient.
      mask: bool, 3-D or 4-D, broadcastable to [B, N, T, S]; True means the
        query sees the key.
      scale: multiplies the logits; None means H ** -0.5.
      is_causal: key position <= query position. Positions are indices, unless
        given; with T != S query 0 still sees key 0 only, as in jax.nn. Pass
        query_offset=S - T to align the ends, e.g. to decode with a cache.
      query_seq_lengths, key_value_seq_lengths: [B] int32; entries at and
        beyond a length are masked.
      local_window_size: (left, right): a query sees keys at positions from
        its own - left to its own + right, both included, so a window of W
        keys that ends at the query is (W - 1, 0). An int means the same on
        both sides, None no limit.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      return_residual: also return the log-sum-exp of the logits.
      query_offset: int, or int32 [B]; added to the query positions.
      query_segment_ids, key_value_segment_ids: [B, T] and [B, S] int32; a
        query sees keys of an equal id. With T == S one of them serves both.
      query_positions, key_value_positions: [B, T] and [B, S] int32; what
        is_causal and local_window_size compare. With T == S one serves both.
      logits_soft_cap: c > 0; the logits become c * tanh(logits / c).
      sinks: [N] floating; a logit for each head that takes part in the
        softmax without a value. Has a gradient.
      dropout_rate: probability in [0, 1) with which a weight is dropped; the
        others are divided by 1 - dropout_rate.
      dropout_key: a jax.random key, needed if dropout_rate > 0. The bits
        depend on the element's indices only, so every implementation and
        every sharding drops the same weights.
      config: for the implementation taken, or Configs for forward and
        backward apart; None looks it up.

    Returns:
      [B, T, N, D] in query.dtype, accumulated in f32 (f64 for f64). With
      return_residual, also the log-sum-exp, [B, T, N] f32 (sinks included),
      -inf where a query sees no key. Without B if query has none.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: `xla` holds [B, N, T, S] f32; the others hold nothing of that
    size. For the backward, query, key, value, out in f32 and three f32 a row
    and head are kept, named "tokumx_dot_product_attention" for jax.checkpoint policies.
    Gradients: query, key, value, bias, sinks; first order.
    Source: Vaswani et al. 2017, arXiv:1706.03762; grouped heads: Ainslie et
    al. 2023, arXiv:2305.13245; sinks: Xiao et al. 2023, arXiv:2309.17453.
    """
    checked = Checked(query, key, value)
    arrays = checked.arrays(
        bias=bias,
        mask=mask,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        query_offset=query_offset,
        query_segment_ids=query_segment_ids,
        key_value_segment_ids=key_value_segment_ids,
        query_positions=query_positions,
        key_value_positions=key_value_positions,
        sinks=sinks,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
    )
    options = checked.options(
        scale=scale,
        is_causal=is_causal,
        window=local_window_size,
        logits_soft_cap=logits_soft_cap,
        dropout_rate=dropout_rate,
    )
    results = call_op(
        ATTENTION, arrays, options, implementation=implementation, config=config
    )
    out, lse = results["out"], results["lse"]
    if checked.is_unbatched:
        out, lse = out[0], lse[0]
    return (out, lse) if return_residual else out


_SMALL = 256 * 256  # T * S
_SMALL_UNMASKED = 512 * 512


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Expected order of speed; measured on a CPU, see README.md."""
    native = ("cpu_native", "C++ whose tiles stay in the L2 cache")
    blocked = ("xla_blocked", "blocks stay in cache and masked ones are skipped")
    plain = ("xla", "one product over all keys")
    decode = ("xla_decode", "few queries: one pass over the cache as it lies")
    if not call.is_static:
        return [plain, blocked]
    t, s = call["query"].size(1), call["key"].size(1)
    if t <= xla_decode.MAX_QUERIES and s >= 1024:
        return [native, decode, plain, blocked]
    small = _SMALL if masks.has_any_mask(call, call) else _SMALL_UNMASKED
    if device.platform == "cpu" and t * s <= small:
        return [native, plain, blocked]
    return [native, blocked, plain]


_LOGITS = "b n t s"

ATTENTION = OpSpec(
    name="dot_product_attention",
    axes={
        "query": "b t n h",
        "key": "b s k h",
        "value": "b s k d",
        "bias": _LOGITS,
        "mask": _LOGITS,
        "query_seq_lengths": "b",
        "key_value_seq_lengths": "b",
        "query_offset": "b",
        "query_segment_ids": "b t",
        "key_value_segment_ids": "b s",
        "query_positions": "b t",
        "key_value_positions": "b s",
        "sinks": "b n",
        "dropout_key": "b w",
        "dropout_heads": "b n",
        "out": "b t n d",
        "lse": "b t n",
        "out_wide": "b t n d",
        "row_max": "b t n",
        "row_sum": "b t n",
    },
    outputs=("out", "lse", "out_wide", "row_max", "row_sum"),
    graded_outputs=("out", "lse"),
    sharded_axes={"b": "b", "k": "kn"},
    differentiable=("query", "key", "value", "bias", "sinks"),
    implementations=(
        Implementation.of_module("cpu_native", cpu_native),
        Implementation.of_module("xla_decode", xla_decode),
        Implementation.of_module("xla_blocked", xla_blocked),
        Implementation.of_module("xla", reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=examples,
)
