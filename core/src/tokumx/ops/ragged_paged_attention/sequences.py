"""Which rows of a ragged batch belong to which sequence, and what they see.

T tokens, R rows of the tables (sequences at most), W pages a row.

A sequence with q new tokens and s keys in all holds its tokens at positions
s - q ... s - 1: the last token always sits at the last key.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tokumx.contract import Arrays, CallSpec

Index = jax.Array | int


class Rules(NamedTuple):
    """Static part of the mask; left and right as in local_window_size."""

    is_causal: bool
    left: int | None
    right: int | None

    @classmethod
    def of(cls, call: CallSpec) -> "Rules":
        left, right = call.option("window")
        return cls(call.option("is_causal"), left, right)

    @property
    def reach(self) -> int | None:
        """How far past its own position a token sees; None for no limit."""
        return 0 if self.is_causal else self.right

    def start(self, query: Index) -> jax.Array:
        """Position of the first key that a token at position `query` sees."""
        return (
            jnp.zeros((), jnp.int32)
            if self.left is None
            else jnp.maximum(query - self.left, 0)
        )

    def end(self, query: Index, length: Index) -> Index:
        """Position after the last key that it sees."""
        return (
            length
            if self.reach is None
            else jnp.minimum(length, query + self.reach + 1)
        )

    def visible(self, query: jax.Array, key: jax.Array, length: Index) -> jax.Array:
        """Whether a token at position `query` sees the key at position `key`,
        which are broadcast against each other."""
        shape = jnp.broadcast_shapes(query.shape, key.shape)
        seen = jnp.broadcast_to(key < length, shape)
        if self.reach is not None:
            seen = seen & (key <= query + self.reach)
        if self.left is not None:
            seen = seen & (key >= query - self.left)
        return seen


@dataclass(frozen=True)
class Sequences:
    """Per sequence, [R] int32, made safe: rows and keys exist in the arrays.

    Attributes:
      first_row: where its tokens start in query.
      query_length: its new tokens.
      kv_length: its keys, the new tokens' among them.
      position: of its first new token.
      count: scalar, sequences in use.
      end: scalar, rows of query in use.
    """

    first_row: jax.Array
    query_length: jax.Array
    kv_length: jax.Array
    position: jax.Array
    count: jax.Array
    end: jax.Array

    @classmethod
    def of(cls, arrays: Arrays, keys_per_row: int) -> "Sequences":
        """Reads the tables; keys_per_row is what a row of page_table can hold."""
        tokens = arrays["query"].shape[0]
        bounds, lengths = arrays["query_start_loc"], arrays["seq_lens"]
        rows = lengths.shape[0]
        count = jnp.full((), rows, jnp.int32)
        if "num_seqs" in arrays:
            count = jnp.clip(arrays["num_seqs"], 0, rows)
            index = jnp.arange(rows + 1, dtype=jnp.int32)
            # Whatever the rows beyond num_seqs hold, they are empty.
            bounds = jnp.where(index <= count, bounds, bounds[count])
        bounds = jnp.clip(bounds, 0, tokens)
        query_length = jnp.maximum(bounds[1:] - bounds[:-1], 0)
        return cls(
            first_row=bounds[:-1],
            query_length=query_length,
            kv_length=jnp.clip(lengths, 0, keys_per_row),
            position=lengths - query_length,
            count=count,
            end=bounds[-1],
        )

    def of_rows(self, tokens: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """For each row of query: its sequence, its position, is it in use."""
        row = jnp.arange(tokens, dtype=jnp.int32)
        ends = self.first_row + self.query_length
        owner = jnp.searchsorted(ends, row, side="right").astype(jnp.int32)
        owner = jnp.minimum(owner, ends.shape[0] - 1)
        in_use = (row >= self.first_row[0]) & (row < self.end)
        return owner, self.position[owner] + row - self.first_row[owner], in_use
