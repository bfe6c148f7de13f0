"""Loops over the rows of each group, a block at a time.

B problems, M rows, G groups. A group is cut into blocks of a few sizes: large
ones while they fit, then smaller ones, and one of the smallest for the rest:

  rows   | group 0              | group 1 ...
  blocks | large | small | small|  the last one spills over

A block of the smallest size may hold rows of other groups, which are masked;
where it would end beyond row M, it is moved back, and rows seen before are
masked. So nothing is padded or copied, and each row is new in one block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tokumx.contract import Arrays
from tokumx.ops.ragged_dot.groups import Bounds, bounds_of
from tokumx.pallas_lib.varying import filled
from tokumx.quant import QArray

Carry = TypeVar("Carry")
DotDtype = Literal["float32", "input"]
_ZERO = np.int32(0)  # all indices are int32, also under x64


class Block(NamedTuple):
    """`size` rows of a problem from `begin`.

    Attributes:
      is_new: [size, 1] bool: rows of the group that no block before has; None
        if all are.
    """

    problem: jax.Array
    begin: jax.Array
    size: int
    is_new: jax.Array | None

    def of(self, x: jax.Array) -> jax.Array:
        """[size, W] of x, [B or 1, M, W]."""
        start = (_problem(x, self.problem), self.begin, _ZERO)
        return lax.dynamic_slice(x, start, (1, self.size, x.shape[2]))[0]

    def own(self, x: jax.Array) -> jax.Array:
        """The same, zero in rows that are not new, whatever they hold."""
        rows = self.of(x)
        if self.is_new is None:
            return rows
        return jnp.where(self.is_new, rows, jnp.zeros_like(rows))

    def put(self, out: jax.Array, rows: jax.Array) -> jax.Array:
        """`out`, [B, M, W], with the new ones of `rows`, [size, W]."""
        if self.is_new is not None:
            rows = jnp.where(self.is_new, rows, self.of(out))
        return lax.dynamic_update_slice(
            out, rows[None], (self.problem, self.begin, _ZERO)
        )


@dataclass(frozen=True)
class RowBlocks:
    """How the groups of a call are cut into blocks.

    Attributes:
      bounds: of the groups, [B or 1, G].
      batch: B.
      rows: M.
      sizes: rows of a block, descending.
    """

    bounds: Bounds
    batch: int
    rows: int
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, arrays: Arrays, batch: int, sizes: Sequence[int]) -> "RowBlocks":
        rows = arrays["lhs"].shape[1]
        # XLA would run a block of all rows ahead of the loop, needed or not.
        cut = tuple(size for size in sizes if size < rows) or (rows,)
        return cls(bounds_of(arrays), batch, rows, cut)

    @property
    def num_groups(self) -> int:
        """Of all problems."""
        return self.batch * self.bounds.starts.shape[1]

    def group(self, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(problem, group) of an index < num_groups."""
        count = self.bounds.starts.shape[1]
        return index // count, index % count

    def non_empty(self) -> tuple[jax.Array, jax.Array]:
        """Indices of all groups, those with rows first, and how many these are."""
        shape = (self.batch, self.bounds.starts.shape[1])
        is_empty = jnp.broadcast_to(self.bounds.starts >= self.bounds.ends, shape)
        is_empty = is_empty.reshape(-1)
        order = lax.iota(jnp.int32, self.num_groups)
        keys = is_empty.astype(jnp.int32)
        _, order = lax.sort((keys, order), num_keys=1, is_stable=True)
        return order, (1 - keys).sum(dtype=jnp.int32)

    def fold(
        self, index: jax.Array, step: Callable[[Block, Carry], Carry], carry: Carry
    ) -> Carry:
        """step(block, carry) for each block of a group, in ascending order."""
        problem, group = self.group(index)
        at = (_problem(self.bounds.starts, problem), group)
        first, end = self.bounds.starts[at], self.bounds.ends[at]
        for size in self.sizes:
            left = jnp.maximum(end - first, 0)
            is_last = size == self.sizes[-1]
            count = (left + size - 1) // size if is_last else left // size

            def whole(j: jax.Array, carry: Any, size=size, first=first) -> Any:
                return step(Block(problem, first + j * size, size, None), carry)

            def tail(j: jax.Array, carry: Any, size=size, first=first) -> Any:
                wanted = first + j * size
                begin = jnp.minimum(wanted, self.rows - size)
                row = begin + lax.iota(jnp.int32, size)[:, None]
                is_new = (row >= wanted) & (row < end)
                return step(Block(problem, begin, size, is_new), carry)

            carry = lax.fori_loop(0, count, tail if is_last else whole, carry)
            first = first + count * size
        return carry


@dataclass(frozen=True)
class BlockDot:
    """Matrix products of blocks."""

    dtype: DotDtype
    accumulate: Any

    def __call__(self, a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
        """The sum over axes[0] of a and axes[1] of b, in f32 (f64 for f64)."""
        dtype = self.accumulate
        if self.dtype == "input":
            dtype = jnp.promote_types(a.dtype, b.dtype)
        return lax.dot_general(
            a.astype(dtype),
            b.astype(dtype),
            (((axes[0],), (axes[1],)), ((), ())),
            preferred_element_type=self.accumulate,
        )


def rows_by_matrices(
    blocks: RowBlocks,
    dot: BlockDot,
    lhs: jax.Array,
    rhs: jax.Array | QArray,
    bias: jax.Array | None,
    *,
    over: int,
    out_dtype: Any,
) -> jax.Array:
    """[B, M, .]: rows of lhs, [B, M, .], times their group's matrix, plus its bias.

    Args:
      rhs: [B, G, K, N], or quantized; bias: [B, G, N], in the accumulator's dtype.
      over: the axis of a matrix to sum over: 0 for out = lhs @ rhs, 1 for the
        transposed matrix.
    """

    def one_group(i: jax.Array, out: jax.Array) -> jax.Array:
        matrix = jax.tree.map(lambda x: _matrix(blocks, x, order[i]), rhs)
        if isinstance(matrix, QArray):
            matrix = matrix.dequantize(dot.accumulate)
        row = None if bias is None else _matrix(blocks, bias, order[i])

        def one_block(block: Block, out: jax.Array) -> jax.Array:
            product = dot(block.of(lhs), matrix, (1, over))
            product = product if row is None else product + row
            return block.put(out, product.astype(out.dtype))

        return blocks.fold(order[i], one_block, out)

    order, count = blocks.non_empty()
    width = rhs.shape[3 - over]
    out = filled((blocks.batch, blocks.rows, width), 0, out_dtype, lhs)
    return lax.fori_loop(0, count, one_group, out)


def outer_products(
    blocks: RowBlocks, dot: BlockDot, lhs: jax.Array, rhs: jax.Array, out_dtype: Any
) -> jax.Array:
    """[B, G, K, N]: lhs^T @ rhs over the rows of each group; both [B, M, .]."""
    shape = (lhs.shape[2], rhs.shape[2])

    def one_group(index: jax.Array) -> jax.Array:
        def one_block(block: Block, total: jax.Array) -> jax.Array:
            return total + dot(block.own(lhs), block.own(rhs), (0, 0))

        total = filled(shape, 0, dot.accumulate, lhs)
        return blocks.fold(index, one_block, total).astype(out_dtype)

    out = lax.map(one_group, lax.iota(jnp.int32, blocks.num_groups))
    return out.reshape(blocks.batch, -1, *shape)


def group_sums(blocks: RowBlocks, rows: jax.Array, accumulate: Any) -> jax.Array:
    """[B, G, N]: the sum of each group's rows, [B, M, N]."""

    def one_group(index: jax.Array) -> jax.Array:
        def one_block(block: Block, total: jax.Array) -> jax.Array:
            return total + block.own(rows).astype(accumulate).sum(0)

        total = filled((rows.shape[2],), 0, accumulate, rows)
        return blocks.fold(index, one_block, total)

    sums = lax.map(one_group, lax.iota(jnp.int32, blocks.num_groups))
    return sums.reshape(blocks.batch, -1, rows.shape[2])


def _matrix(blocks: RowBlocks, x: jax.Array, index: jax.Array) -> jax.Array:
    """x[problem, group] of [B or 1, G, ...]."""
    problem, group = blocks.group(index)
    start = (_problem(x, problem), group) + (_ZERO,) * (x.ndim - 2)
    return lax.dynamic_slice(x, start, (1, 1, *x.shape[2:]))[0, 0]


def _problem(x: jax.Array, problem: jax.Array) -> jax.Array | np.int32:
    return _ZERO if x.shape[0] == 1 else problem
