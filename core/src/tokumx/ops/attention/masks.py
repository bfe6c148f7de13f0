"""Which query sees which key: one predicate, for elements and for blocks.

B batch, T query length, S key length, K key heads. A query sees a key if
every rule that is in force says so:

  length     query index < query_seq_lengths, key index < key_value_seq_lengths
  causal     key position <= query position
  window     -left <= key position - query position <= right
  segments   equal segment ids
  mask       the caller's boolean mask

Positions default to indices; query indices are shifted by query_offset.
"""

import functools
import operator
from collections.abc import Container
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tokumx.contract import Arrays, CallSpec

Array = jax.Array


class Side(NamedTuple):
    """What the rules know about the queries, or about the keys: [B or 1, X]."""

    position: Array
    segment: Array | None
    places: Array | None  # indices, only where a length is given
    length: Array | None  # [B, 1]


class Rules(NamedTuple):
    """Static part of the mask."""

    is_causal: bool
    left: int | None
    right: int | None

    @property
    def uses_positions(self) -> bool:
        return self.is_causal or self.left is not None or self.right is not None


def rules_of(call: CallSpec) -> Rules:
    left, right = call.option("window")
    return Rules(call.option("is_causal"), left, right)


def has_any_mask(arrays: Container[str], call: CallSpec) -> bool:
    """Some query may not see some key."""
    return rules_of(call).uses_positions or any(n in arrays for n in _MASK_ARRAYS)


_MASK_ARRAYS = (
    "mask",
    "query_segment_ids",
    "query_seq_lengths",
    "key_value_seq_lengths",
)


def query_side(arrays: Arrays, length: int) -> Side:
    """The queries, of the given (unpadded) length."""
    index = jnp.arange(length, dtype=jnp.int32)[None]
    position = arrays.get("query_positions", index)
    if "query_offset" in arrays:
        position = position + arrays["query_offset"][:, None]
    return _side(
        arrays, index, position, arrays.get("query_segment_ids"), "query_seq_lengths"
    )


def key_side(arrays: Arrays, length: int) -> Side:
    """The keys, of the given (unpadded) length."""
    index = jnp.arange(length, dtype=jnp.int32)[None]
    position = arrays.get("key_value_positions", index)
    return _side(
        arrays,
        index,
        position,
        arrays.get("key_value_segment_ids"),
        "key_value_seq_lengths",
    )


def _side(
    arrays: Arrays, index: Array, position: Array, segment: Array | None, lengths: str
) -> Side:
    if lengths not in arrays:
        return Side(position, segment, None, None)
    return Side(position, segment, index, arrays[lengths][:, None])


def visible(rules: Rules, query: Side, key: Side) -> Array | None:
    """[B or 1, T, S] without the caller's mask; None if everything is."""
    terms: list[Array] = []
    q, k = query.position[:, :, None], key.position[:, None, :]
    if rules.is_causal:
        terms.append(k <= q)
    if rules.left is not None:
        terms.append(k >= q - rules.left)
    if rules.right is not None:
        terms.append(k <= q + rules.right)
    if query.segment is not None and key.segment is not None:
        terms.append(query.segment[:, :, None] == key.segment[:, None, :])
    if query.places is not None and query.length is not None:
        terms.append((query.places < query.length)[:, :, None])
    if key.places is not None and key.length is not None:
        terms.append((key.places < key.length)[:, None, :])
    return _all(terms[0], terms[1:]) if terms else None


def _all(first: Array, others: list[Array]) -> Array:
    return functools.reduce(operator.and_, others, first)


class BlockMask(NamedTuple):
    """For each query block and key block, [B or 1, heads or 1, nq, nk] bool."""

    any_visible: Array
    all_visible: Array


def block_mask(
    rules: Rules,
    query: Side,
    key: Side,
    mask: Array | None,
    block_q: int,
    block_kv: int,
    heads_per_block: int,
) -> BlockMask:
    """Bounds on `visible` for whole blocks, from each block's extremes.

    `any_visible` may be True for a block that turns out to be masked (the
    kernel then adds nothing), and `all_visible` False for one that is not.
    The caller's `mask` is [B or 1, N or 1, T or 1, S or 1]; heads_per_block
    query heads share an entry.
    """
    some: list[Array] = []
    every: list[Array] = []

    def rule(any_term: Array, all_term: Array) -> None:
        some.append(any_term)
        every.append(all_term)

    q_lo, q_hi = _extremes(query.position, block_q, 3)
    k_lo, k_hi = _extremes(key.position, block_kv, 2)
    if rules.is_causal:
        rule(k_lo <= q_hi, k_hi <= q_lo)
    if rules.left is not None:
        rule(k_hi >= q_lo - rules.left, k_lo >= q_hi - rules.left)
    if rules.right is not None:
        rule(k_lo <= q_hi + rules.right, k_hi <= q_lo + rules.right)
    if query.segment is not None and key.segment is not None:
        (qs_lo, qs_hi) = _extremes(query.segment, block_q, 3)
        (ks_lo, ks_hi) = _extremes(key.segment, block_kv, 2)
        rule(
            (qs_lo <= ks_hi) & (ks_lo <= qs_hi),
            (qs_lo == qs_hi) & (ks_lo == ks_hi) & (qs_lo == ks_lo),
        )
    for side, block, axis in ((query, block_q, 3), (key, block_kv, 2)):
        if side.places is not None and side.length is not None:
            lo, hi = _extremes(side.places, block, axis)
            length = side.length[:, :, None, None]
            rule(lo < length, hi < length)
    if mask is not None:
        rule(*_mask_extremes(mask, block_q, block_kv, heads_per_block))
    nq = -(-query.position.shape[1] // block_q)
    nk = -(-key.position.shape[1] // block_kv)
    everything = jnp.ones((1, 1, nq, nk), bool)
    return BlockMask(_all(everything, some), _all(everything, every))


def _extremes(x: Array, block: int, axis: int) -> tuple[Array, Array]:
    """Smallest and largest entry of each block, with a new axis at `axis`."""
    blocks = _in_blocks(x, 1, block)  # [B or 1, n, block]
    lo, hi = blocks.min(2)[:, None], blocks.max(2)[:, None]
    return jnp.expand_dims(lo, axis), jnp.expand_dims(hi, axis)


def _in_blocks(x: Array, axis: int, block: int) -> Array:
    """Splits an axis into blocks; a short last one repeats its last entry."""
    size = x.shape[axis]
    missing = -size % block
    if missing:
        widths = [(0, missing if a == axis else 0) for a in range(x.ndim)]
        x = jnp.pad(x, widths, mode="edge")
    return x.reshape(*x.shape[:axis], -1, block, *x.shape[axis + 1 :])


def _mask_extremes(
    mask: jax.Array, block_q: int, block_kv: int, heads_per_block: int
) -> tuple[jax.Array, jax.Array]:
    x = mask
    for axis, block in ((3, block_kv), (2, block_q), (1, heads_per_block)):
        if x.shape[axis] == 1:
            x = jnp.expand_dims(x, axis + 1)
        else:
            x = _in_blocks(x, axis, block)
    # [B or 1, heads, hb, nq, bq, nk, bk] -> [B or 1, heads, nq, nk]
    return x.any((2, 4, 6)), x.all((2, 4, 6))


class Schedule(NamedTuple):
    """For each row of blocks, the columns to visit, unmasked ones first.

    Attributes:
      order: [B or 1, heads or 1, rows, columns] int32, columns to visit.
      unmasked: [B or 1, heads or 1, rows] int32, how many of them need no
        element mask.
      visited: likewise, how many are visited at all.
    """

    order: Array
    unmasked: Array
    visited: Array


def schedule(blocks: BlockMask, transpose: bool = False) -> Schedule:
    """Visits only blocks with something to see."""
    some, every = blocks
    if transpose:
        some, every = some.swapaxes(2, 3), every.swapaxes(2, 3)
    every = every & some
    # 0: no mask needed, 1: mask needed, 2: skip. Stable, so memory order stays.
    rank = (~every).astype(jnp.int32) + (~some).astype(jnp.int32)
    order = jnp.argsort(rank, axis=3, stable=True).astype(jnp.int32)
    return Schedule(order, every.sum(3, dtype=jnp.int32), some.sum(3, dtype=jnp.int32))
