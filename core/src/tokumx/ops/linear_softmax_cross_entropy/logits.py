"""Logits of some rows and some words; the same in every implementation.

R rows, D width, V words: of a tile, or all of them.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.contract import CallSpec

# Label of a row that does not count; its x may hold anything.
IGNORED = -1


@dataclass(frozen=True)
class Logits:
    """How products become logits, and how gradients go back through it.

    l = x . w + bias;  z = cap * tanh(l / cap) / temperature;
    z = -inf where bias is -inf, with a cap too.

    Attributes:
      cap: None for none.
      temperature: divides what the cap leaves.
      weight_layout: "dv" or "vd".
      accumulate: dtype of logits and sums.
      dot_dtype: dtype of the operands of products.
    """

    cap: float | None
    temperature: float
    weight_layout: str
    accumulate: Any
    dot_dtype: Any

    @classmethod
    def of(cls, call: CallSpec, x: jax.Array, weight: jax.Array, dot: str) -> "Logits":
        """dot: "float32", or "input" for the operands' common dtype."""
        common = jnp.promote_types(x.dtype, weight.dtype)
        accumulate = jnp.promote_types(common, jnp.float32)
        return cls(
            call.option("logits_soft_cap"),
            call.option("temperature"),
            call.option("weight_layout"),
            accumulate,
            accumulate if dot == "float32" else common,
        )

    @property
    def vocab_axis(self) -> int:
        """Of the weight."""
        return 1 if self.weight_layout == "dv" else 0

    def rows(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        """[R, D], zeros in rows that do not count: 0 * NaN would spread."""
        return jnp.where(labels[:, None] == IGNORED, 0, x).astype(self.dot_dtype)

    def weight(self, weight: jax.Array) -> jax.Array:
        return weight.astype(self.dot_dtype)

    def product(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """[R, D] x weight -> [R, V]."""
        return self._dot(x, weight, (1, 1 - self.vocab_axis))

    def times_weight(self, tile: jax.Array, weight: jax.Array) -> jax.Array:
        """[R, V] x weight -> [R, D]."""
        return self._dot(tile.astype(self.dot_dtype), weight, (1, self.vocab_axis))

    def times_rows(self, x: jax.Array, tile: jax.Array) -> jax.Array:
        """[R, D] x [R, V] -> [D, V]; [V, D] out of one product is 1.4x slower."""
        return self._dot(x, tile.astype(self.dot_dtype), (0, 0))

    def _dot(self, a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
        dimensions = (((contract[0],), (contract[1],)), ((), ()))
        return jax.lax.dot_general(
            a, b, dimensions, preferred_element_type=self.accumulate
        )

    def finished(
        self, product: jax.Array, bias: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """[R, V]: z, and dz / dl where it is not the same for all."""
        if bias is not None:
            product = product + bias.astype(self.accumulate)
        z, slope = product, None
        if self.cap is not None:
            unit = jnp.tanh(product / self.cap)
            z, slope = self.cap * unit, 1 - unit * unit
        if self.temperature != 1.0:
            z = z / self.temperature
        if bias is not None and self.cap is not None:
            z = jnp.where(is_removed(bias), -jnp.inf, z)
        return z, slope


def is_removed(bias: jax.Array) -> jax.Array:
    """The words that can never come: those with a bias of -inf."""
    return bias == -jnp.inf


def finite_max(row_max: jax.Array) -> jax.Array:
    """What is subtracted from logits: 0 in a row of nothing but -inf."""
    return jnp.where(row_max == -jnp.inf, 0, row_max)
