"""Public API of ragged paged attention, and its OpSpec.

N query heads, K key heads, H head dim, D value dim.
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
from tokumx.ops.ragged_paged_attention import cpu_native, reference, xla_blocked
from tokumx.ops.ragged_paged_attention.arguments import OP, Checked
from tokumx.ops.ragged_paged_attention.inputs import examples, make_arrays
from tokumx.ops.ragged_paged_attention.pages import page_size_and_heads

ArrayLike = Any


def ragged_paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    page_table: ArrayLike,
    *,
    num_seqs: ArrayLike | int | None = None,
    scale: float | None = None,
    is_causal: bool = True,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    logits_soft_cap: float | None = None,
    sinks: ArrayLike | None = None,
    key_scale: ArrayLike | float | None = None,
    value_scale: ArrayLike | float | None = None,
    cache_layout: str = "NHD",
    implementation: Preference = None,
    config: Config | Configs | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention of new tokens over a paged cache: prefill and decode in one batch.

    Sequence i has new tokens query[query_start_loc[i] : query_start_loc[i + 1]],
    q of them, and seq_lens[i] keys, s of them; new token t has position s - q + t.
    Its key at position p lies in slot p % page_size of page
    page_table[i, p // page_size], where the caller has already written it.

    logits[t, n, p] = cap(scale * query[t, n] . (key[p, k(n)] * key_scale))
    out[t, n] = sum_p softmax_p(logits[t, n, p]) * value[p, k(n)] * value_scale

    The softmax runs over the keys that the token may see. A token that sees no
    key gives zeros.

    Args:
      query: [num_tokens, N, H]; f32, bf16, f16 or f64. Rows at and beyond
        query_start_loc[-1] are padding and give zeros.
      key_cache: [num_pages, page_size, K, H]; a dtype of query's list, int8,
        float8_e4m3fn or float8_e5m2. N must be a multiple of K; query head n
        reads key head n // (N // K).
      value_cache: [num_pages, page_size, K, D], likewise. None means that
        key_cache is [num_pages, page_size, K, H + D] and holds each key and,
        after it, its value; slices of such an array, passed as key and value,
        would be copied whole.
      query_start_loc: [max_seqs + 1] int32, ascending from 0; unused rows at
        the end repeat the last entry.
      seq_lens: [max_seqs] int32, keys of each sequence, the new tokens'
        included; at least its new tokens, 0 in unused rows.
      page_table: [max_seqs, max_pages_per_seq] int32. Entries of pages that no
        token sees may hold anything.
      num_seqs: int or int32 []; rows of the three tables beyond it may hold
        anything. None means all are in use.
      scale: multiplies the logits; None means H ** -0.5.
      is_causal: a token sees keys at positions up to its own.
      local_window_size: (left, right): a token sees keys at positions from its
        own - left to its own + right, both included, so a window of W keys
        that ends at the token is (W - 1, 0). An int means the same on both
        sides, None no limit.
      logits_soft_cap: c > 0; the logits become c * tanh(logits / c).
      sinks: [N] floating; a logit for each head that takes part in the softmax
        without a value.
      key_scale, value_scale: what to multiply stored keys and values with; a
        number, [K] for each head, or of the cache's shape without its last
        axis for each head of each slot. None means 1.
      cache_layout: "NHD" as above, or "HND": the caches and slot scales are
        [num_pages, K, page_size, ...].
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken; None looks it up.
      return_residual: also return the log-sum-exp of the logits.

    Returns:
      [num_tokens, N, D] in query.dtype, accumulated in f32 (f64 for f64). With
      return_residual, also the log-sum-exp, [num_tokens, N] f32 (sinks
      included), -inf where a token sees no key.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Values of the tables are checked where they are numpy arrays, and everywhere
    under tokumx.debug_checks(). Unchecked, wrong ones give wrong results, but
    nothing outside the arrays is read.

    Memory: `xla_blocked` holds one block of pages in f32; `xla` gathers all
    pages of up to 16 tokens. Gradients: only of `xla`; this op is for serving.
    Source: Kwon et al. 2023, arXiv:2309.06180; grouped heads: Ainslie et al.
    2023, arXiv:2305.13245; sinks: Xiao et al. 2023, arXiv:2309.17453.
    """
    checked = Checked(query, key_cache, value_cache, cache_layout)
    options = checked.options(
        scale=scale,
        is_causal=is_causal,
        window=local_window_size,
        logits_soft_cap=logits_soft_cap,
    )
    arrays = checked.arrays(
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        page_table=page_table,
        num_seqs=num_seqs,
        window=local_window_size,
        sinks=sinks,
        key_scale=key_scale,
        value_scale=value_scale,
    )
    results = call_op(
        RAGGED_PAGED_ATTENTION,
        arrays,
        options,
        implementation=implementation,
        config=config,
    )
    return (results["out"], results["lse"]) if return_residual else results["out"]


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Expected order of speed; measured on CPUs, see README.md."""
    blocked = ("xla_blocked", "reads only the pages that are seen, a block at a time")
    plain = ("xla", "gathers every page of every token at once")
    native = ("cpu_native", "C++ that converts the pages as it reads them")
    if not call.is_static:
        return [plain, blocked]
    tokens, table = call["query"].size(0), call["page_table"]
    keys = table.size(1) * page_size_and_heads(call)[0]
    if device.platform == "cpu" and tokens <= table.size(0) and keys <= 256:
        return [native, plain, blocked]
    return [native, blocked, plain]


_SLOTS = "p s k"
_HEADS_MAJOR_SLOTS = "p k s"

RAGGED_PAGED_ATTENTION = OpSpec(
    name=OP,
    # t tokens, i and r rows of the tables, w pages of a row, p pages of the
    # cache, s slots of a page, c key and value side by side.
    axes={
        "query": "t n h",
        "key_cache": f"{_SLOTS} h",
        "value_cache": f"{_SLOTS} d",
        "kv_cache": f"{_SLOTS} c",
        "key_scale_pages": _SLOTS,
        "value_scale_pages": _SLOTS,
        "key_cache_hnd": f"{_HEADS_MAJOR_SLOTS} h",
        "value_cache_hnd": f"{_HEADS_MAJOR_SLOTS} d",
        "kv_cache_hnd": f"{_HEADS_MAJOR_SLOTS} c",
        "key_scale_pages_hnd": _HEADS_MAJOR_SLOTS,
        "value_scale_pages_hnd": _HEADS_MAJOR_SLOTS,
        "query_start_loc": "i",
        "seq_lens": "r",
        "page_table": "r w",
        "num_seqs": "",
        "sinks": "n",
        "key_scale": "k",
        "value_scale": "k",
        "out": "t n d",
        "lse": "t n",
    },
    outputs=("out", "lse"),
    graded_outputs=("out", "lse"),
    sharded_axes={"k": "kn"},
    differentiable=("query", "sinks"),
    implementations=(
        Implementation.of_module("cpu_native", cpu_native),
        Implementation.of_module("xla_blocked", xla_blocked),
        Implementation.of_module("xla", reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=examples,
)
