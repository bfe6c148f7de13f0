"""Checks the arguments and brings them to one canonical form.

Canonical: heads [B, T, N, H], cos and sin [1 or B, T, R / 2].
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.contract import ArraySpec
from tokumx.ops.rotary_embedding.scaling import OP
from tokumx.ops.rotary_embedding.tables import RotaryTables, rotary_tables

_DTYPES = ("float32", "bfloat16", "float16", "float64")


def _fail(rule: str, got: str, advice: str) -> ValueError:
    return ValueError(f"{OP}: {rule}; got {got}. {advice}")


class Checked:
    """query and key, with [*lead, T] in front of heads and head_dim.

    Attributes:
      query: [*lead, T, N, H], as given.
      key: [*lead, T, K, H] or None.
    """

    def __init__(self, query: Any, key: Any):
        self.query = jnp.asarray(query)
        self.key = None if key is None else jnp.asarray(key)
        if self.query.ndim < 3 or self.query.dtype.name not in _DTYPES:
            raise _fail(
                f"query must be [..., T, N, H] of {', '.join(_DTYPES)}",
                f"query={ArraySpec.of(self.query)}",
                "Give it axes of positions, heads and head_dim.",
            )
        if self.key is not None and not self._is_like_query(self.key):
            raise _fail(
                "key must be as query but for the number of heads",
                f"query={ArraySpec.of(self.query)} key={ArraySpec.of(self.key)}",
                "Rotate them in two calls if their positions differ.",
            )

    def _is_like_query(self, key: jax.Array) -> bool:
        ours, theirs = list(self.query.shape), list(key.shape)
        return (
            key.dtype == self.query.dtype
            and len(ours) == len(theirs)
            and ours[:-2] + ours[-1:] == theirs[:-2] + theirs[-1:]
        )

    def tables(
        self, tables: Any, positions: Any, rotary_dim: Any, how: Mapping[str, Any]
    ) -> RotaryTables:
        """The tables given, or those of the positions; [1 or B, T, R / 2]."""
        if tables is not None:
            self._check_alone(positions, rotary_dim, how)
            tables = self._checked_tables(tables)
        else:
            tables = self._computed(positions, rotary_dim, how)
        self._check_rotary_dim(2 * tables.cos.shape[-1])
        return RotaryTables(*map(self._table_with_one_batch, tables))

    def _check_alone(
        self, positions: Any, rotary_dim: Any, how: Mapping[str, Any]
    ) -> None:
        others = {"positions": positions, "rotary_dim": rotary_dim, **how}
        given = [n for n, x in others.items() if x is not None]
        if given:
            raise _fail(
                "tables take the place of positions, rotary_dim, theta, scaling and "
                "frequencies",
                f"tables and {', '.join(given)}",
                "Pass one or the other.",
            )

    def _checked_tables(self, tables: Any) -> RotaryTables:
        if not isinstance(tables, tuple) or len(tables) != 2:
            raise _fail(
                "tables must be a RotaryTables, or a pair of cos and sin",
                type(tables).__name__,
                "Make them with tokumx.rotary_tables.",
            )
        cos, sin = map(jnp.asarray, tables)
        got = f"cos={ArraySpec.of(cos)} sin={ArraySpec.of(sin)}"
        if cos.shape != sin.shape or not all(
            jnp.issubdtype(x.dtype, jnp.floating) for x in (cos, sin)
        ):
            raise _fail(
                "cos and sin must be floating and of one shape",
                got,
                "Make them with tokumx.rotary_tables.",
            )
        self._check_leading("tables", cos.shape[:-1], f"{self._written} {got}")
        wide = jnp.promote_types(self.query.dtype, jnp.float32)
        return RotaryTables(cos.astype(wide), sin.astype(wide))

    @property
    def _written(self) -> str:
        return f"query={ArraySpec.of(self.query)}"

    def _computed(
        self, positions: Any, rotary_dim: Any, how: Mapping[str, Any]
    ) -> RotaryTables:
        if positions is None:
            positions = jnp.arange(self.query.shape[-3])
        positions = jnp.asarray(positions)
        got = f"{self._written} positions={ArraySpec.of(positions)}"
        self._check_leading("positions", positions.shape, got)
        head_dim = self.query.shape[-1]
        return rotary_tables(
            positions,
            head_dim if rotary_dim is None else rotary_dim,
            dtype=jnp.promote_types(self.query.dtype, jnp.float32),
            **{n: x for n, x in how.items() if x is not None},
        )

    def _check_leading(self, name: str, shape: tuple[Any, ...], got: str) -> None:
        """[T], or [*lead, T] with leading axes of the query's size or 1."""
        expected = self.query.shape[:-2]
        is_right = (
            1 <= len(shape) <= len(expected)
            and shape[-1] == expected[-1]
            and all(
                d in (1, e)
                for d, e in zip(
                    shape[:-1], expected[len(expected) - len(shape) : -1], strict=True
                )
            )
        )
        if not is_right:
            raise _fail(
                f"{name} must have the axes of query before its heads, or their last",
                got,
                "T must be the same; other axes may be 1 or missing.",
            )

    def _check_rotary_dim(self, rotary_dim: int) -> None:
        if rotary_dim > self.query.shape[-1]:
            raise _fail(
                "no more than head_dim numbers of a head can be rotated",
                f"rotary_dim={rotary_dim} {self._written}",
                "The rest of a head is passed on as it is.",
            )

    def _table_with_one_batch(self, table: jax.Array) -> jax.Array:
        """[..., T, R / 2] -> [1 or B, T, R / 2]."""
        lead, last = self.query.shape[:-3], table.shape[-2:]
        if all(d == 1 for d in table.shape[:-2]):
            return table.reshape(1, *last)
        return jnp.broadcast_to(table, (*lead, *last)).reshape(-1, *last)


def with_one_batch(x: jax.Array) -> jax.Array:
    """[*lead, T, N, H] -> [B, T, N, H]."""
    if x.ndim == 3:
        return x[None]
    return jax.lax.collapse(x, 0, x.ndim - 3) if x.ndim > 4 else x
