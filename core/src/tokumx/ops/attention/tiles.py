"""Cuts attention's operands into blocks, for kernels that loop over them.

B batch, T query length, S key length, N query heads, K key heads, G = N // K,
H head dim, D value dim. hb key heads are worked on together, so that their
small matrix products run as one batch; C = B * K / hb is the number of
independent problems ("cells"), bq and bk the block sizes, R = G * bq the rows
of one head's query block, nq and nk the numbers of blocks.

  query rows   [C, nq, hb, R, H]     one contiguous block a step
  keys         [C, nk, hb, bk, H]

T and S are padded with zeros to whole blocks. Padded keys are masked by the
schedule; padded queries are cut off at the end.
"""

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import Arrays, CallSpec
from tokumx.ops.attention import masks
from tokumx.pallas_lib.dropout import keep_mask

Index = jax.Array | int


@dataclass(frozen=True)
class Grid:
    """Sizes of one tiling."""

    batch: int
    query_length: int
    key_length: int
    kv_heads: int
    group: int
    block_q: int
    block_kv: int
    block_heads: int

    @classmethod
    def of(cls, arrays: Arrays, block_q: int, block_kv: int, heads: int) -> "Grid":
        b, t, n, _ = arrays["query"].shape
        s, k = arrays["key"].shape[1:3]
        return cls(
            batch=b,
            query_length=t,
            key_length=s,
            kv_heads=k,
            group=n // k,
            block_q=min(block_q, t),
            block_kv=min(block_kv, s),
            block_heads=math.gcd(heads, k),
        )

    @property
    def num_q(self) -> int:
        return -(-self.query_length // self.block_q)

    @property
    def num_kv(self) -> int:
        return -(-self.key_length // self.block_kv)

    @property
    def head_blocks(self) -> int:
        return self.kv_heads // self.block_heads

    @property
    def cells(self) -> int:
        return self.batch * self.head_blocks

    @property
    def rows(self) -> int:
        return self.group * self.block_q

    @property
    def padded_q(self) -> int:
        return self.num_q * self.block_q

    @property
    def padded_kv(self) -> int:
        return self.num_kv * self.block_kv


def cut_rows(x: jax.Array, grid: Grid, padding: float = 0) -> jax.Array:
    """[B, T, N, *] -> [C, nq, hb, R, *]; also for [B, T, N]."""
    x = pad_axis(x, 1, grid.padded_q, padding)
    tail = x.shape[3:]
    x = x.reshape(
        grid.batch,
        grid.num_q,
        grid.block_q,
        grid.head_blocks,
        grid.block_heads,
        grid.group,
        *tail,
    )
    x = jnp.moveaxis(x, (0, 3, 1, 4, 5, 2), range(6))
    return x.reshape(grid.cells, grid.num_q, grid.block_heads, grid.rows, *tail)


def join_rows(x: jax.Array, grid: Grid) -> jax.Array:
    """The inverse of cut_rows: [C, nq, hb, R, *] -> [B, T, N, *]."""
    tail = x.shape[4:]
    x = x.reshape(
        grid.batch,
        grid.head_blocks,
        grid.num_q,
        grid.block_heads,
        grid.group,
        grid.block_q,
        *tail,
    )
    x = jnp.moveaxis(x, range(6), (0, 3, 1, 4, 5, 2))
    heads = grid.kv_heads * grid.group
    return x.reshape(grid.batch, grid.padded_q, heads, *tail)[:, : grid.query_length]


def cut_keys(x: jax.Array, grid: Grid) -> jax.Array:
    """[B, S, K, *] -> [C, nk, hb, bk, *]."""
    x = pad_axis(x, 1, grid.padded_kv)
    tail = x.shape[3:]
    x = x.reshape(
        grid.batch,
        grid.num_kv,
        grid.block_kv,
        grid.head_blocks,
        grid.block_heads,
        *tail,
    )
    x = jnp.moveaxis(x, (0, 3, 1, 4, 2), range(5))
    return x.reshape(grid.cells, grid.num_kv, grid.block_heads, grid.block_kv, *tail)


def join_keys(x: jax.Array, grid: Grid) -> jax.Array:
    """The inverse of cut_keys: [C, nk, hb, bk, *] -> [B, S, K, *]."""
    tail = x.shape[4:]
    x = x.reshape(
        grid.batch,
        grid.head_blocks,
        grid.num_kv,
        grid.block_heads,
        grid.block_kv,
        *tail,
    )
    x = jnp.moveaxis(x, range(5), (0, 3, 1, 4, 2))
    x = x.reshape(grid.batch, grid.padded_kv, grid.kv_heads, *tail)
    return x[:, : grid.key_length]


def pad_axis(x: jax.Array, axis: int, size: int, padding: float = 0) -> jax.Array:
    missing = size - x.shape[axis]
    if not missing:
        return x
    widths = [(0, missing if a == axis else 0) for a in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=padding)


class Masking:
    """The element mask and the bias of one block, and which blocks to visit."""

    def __init__(self, arrays: Arrays, call: CallSpec, grid: Grid):
        self.grid = grid
        self.rules = masks.rules_of(call)
        query = masks.query_side(arrays, grid.query_length)
        key = masks.key_side(arrays, grid.key_length)
        self.query = _padded(query, grid.padded_q)
        self.key = _padded(key, grid.padded_kv)
        self.mask = self._padded_logits_like(arrays.get("mask"))
        self.bias = self._padded_logits_like(arrays.get("bias"))
        self.dropout = _Dropout.of(arrays, call)
        self.blocks = self._block_mask(query, key, arrays.get("mask"))
        # Some visited block may need an element mask.
        self.may_mask = (
            masks.has_any_mask(arrays, call) or grid.padded_kv != grid.key_length
        )

    def _block_mask(
        self, query: masks.Side, key: masks.Side, mask: jax.Array | None
    ) -> masks.BlockMask:
        grid = self.grid
        blocks = masks.block_mask(
            self.rules,
            query,
            key,
            mask,
            grid.block_q,
            grid.block_kv,
            grid.block_heads * grid.group,
        )
        if grid.padded_kv == grid.key_length:
            return blocks
        whole = jnp.arange(grid.num_kv) < grid.num_kv - 1  # the last one has padding
        return masks.BlockMask(blocks.any_visible, blocks.all_visible & whole)

    def _padded_logits_like(self, x: jax.Array | None) -> jax.Array | None:
        if x is None:
            return None
        if x.shape[2] > 1:
            x = pad_axis(x, 2, self.grid.padded_q)
        return pad_axis(x, 3, self.grid.padded_kv) if x.shape[3] > 1 else x

    def visible(self, cell: Index, i: Index, j: Index) -> jax.Array:
        """[hb or 1, G or 1, bq, bk] bool for query block i and key block j."""
        grid = self.grid
        batch = cell // grid.head_blocks
        query = _side_block(self.query, batch, i, grid.block_q)
        key = _side_block(self.key, batch, j, grid.block_kv)
        terms = []
        inside = masks.visible(self.rules, query, key)
        if inside is not None:
            terms.append(inside[:, None])  # [1, 1, bq, bk]
        if grid.padded_kv != grid.key_length:
            index = j * grid.block_kv + jnp.arange(grid.block_kv, dtype=jnp.int32)
            terms.append((index < grid.key_length)[None, None, None])
        if self.mask is not None:
            terms.append(self.logits_block(self.mask, cell, i, j))
        return functools.reduce(operator.and_, terms)

    def logits_block(self, x: jax.Array, cell: Index, i: Index, j: Index) -> jax.Array:
        """Block of a [B or 1, N or 1, T or 1, S or 1] array, ready to broadcast
        against [hb, G, bq, bk]."""
        starts, sizes = self.logits_slice(x.shape, cell, i, j)
        block = lax.dynamic_slice(x, starts, sizes)[0]
        if x.shape[1] == 1:
            return block[:, None]
        return block.reshape(self.grid.block_heads, self.grid.group, *block.shape[1:])

    def logits_slice(
        self, shape: tuple[int, ...], cell: Index, i: Index, j: Index
    ) -> tuple[list[Index], list[int]]:
        """Where the block lies in an array of that shape: starts and sizes."""
        grid = self.grid
        heads = grid.block_heads * grid.group
        places = (
            (cell // grid.head_blocks, 1),
            (cell % grid.head_blocks * heads, heads),
            (i * grid.block_q, grid.block_q),
            (j * grid.block_kv, grid.block_kv),
        )
        starts = [0 if d == 1 else at for d, (at, _) in zip(shape, places, strict=True)]
        sizes = [1 if d == 1 else n for d, (_, n) in zip(shape, places, strict=True)]
        return starts, sizes

    def kept(self, cell: Index, i: Index, j: Index) -> jax.Array:
        """[hb, G, bq, bk] bool: which weights dropout keeps."""
        grid, dropout = self.grid, self.dropout
        assert dropout is not None, "no dropout in this call"
        heads = grid.block_heads * grid.group
        batch = cell // grid.head_blocks
        first = cell % grid.head_blocks * heads
        b_key = batch if dropout.key.shape[0] > 1 else 0
        b_head = batch if dropout.heads.shape[0] > 1 else 0
        key = lax.dynamic_index_in_dim(dropout.key, b_key, keepdims=False)
        head = lax.dynamic_slice(dropout.heads, (b_head, first), (1, heads))
        head = head.reshape(grid.block_heads, grid.group, 1, 1)
        query = i * grid.block_q + jnp.arange(grid.block_q)
        rows = head * jnp.uint32(grid.query_length) + query.astype(jnp.uint32)[:, None]
        columns = (j * grid.block_kv + jnp.arange(grid.block_kv)).astype(jnp.uint32)
        return keep_mask(key[None, None, None, None], rows, columns, dropout.rate)


@dataclass(frozen=True)
class _Dropout:
    key: jax.Array  # [B or 1, 2]
    heads: jax.Array  # [B or 1, N]
    rate: float

    @classmethod
    def of(cls, arrays: Arrays, call: CallSpec) -> "_Dropout | None":
        if "dropout_key" not in arrays:
            return None
        rate = call.option("dropout_rate")
        return cls(arrays["dropout_key"], arrays["dropout_heads"], rate)


def _padded(side: masks.Side, length: int) -> masks.Side:
    def pad(x: jax.Array) -> jax.Array:
        missing = length - x.shape[1]
        return jnp.pad(x, [(0, 0), (0, missing)], mode="edge") if missing else x

    return _map_rows(side, pad)._replace(length=side.length)


def _side_block(side: masks.Side, batch: Index, block: Index, size: int) -> masks.Side:
    def cut(x: jax.Array) -> jax.Array:
        row = batch if x.shape[0] > 1 else 0
        return lax.dynamic_slice(x, (row, block * size), (1, size))

    length = side.length
    if length is not None:
        row = batch if length.shape[0] > 1 else 0
        length = lax.dynamic_slice(length, (row, 0), (1, 1))
    return _map_rows(side, cut)._replace(length=length)


def _map_rows(side: masks.Side, fn: Callable[[jax.Array], jax.Array]) -> masks.Side:
    """fn of each [B or 1, length] array; `length` is left out."""
    return masks.Side(
        fn(side.position),
        None if side.segment is None else fn(side.segment),
        None if side.places is None else fn(side.places),
        None,
    )


class Visits:
    """A schedule, ready to be read for one cell and one row of blocks."""

    def __init__(self, masking: Masking, transpose: bool = False):
        plan = masks.schedule(masking.blocks, transpose)
        self._head_blocks = masking.grid.head_blocks
        self._order = plan.order
        self._unmasked = plan.unmasked
        self._visited = plan.visited

    def of(self, cell: Index, row: Index) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(order [columns], how many unmasked, how many in all)."""
        batches, heads = self._order.shape[:2]
        b = cell // self._head_blocks if batches > 1 else 0
        h = cell % self._head_blocks if heads > 1 else 0
        return (
            self._order[b, h, row],
            self._unmasked[b, h, row],
            self._visited[b, h, row],
        )
