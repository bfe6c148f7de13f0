"""The arithmetic on one tile of logits, shared by the blocked implementations."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import CallSpec
from tokumx.ops.attention.tiles import Index, Masking
from tokumx.pallas_lib.online_softmax import SoftmaxState, finite_or_zero

DotDtype = Literal["float32", "input"]


def is_scaled_product(call: CallSpec, *, has_bias: bool) -> bool:
    """The logits are the product times a positive scale, and nothing else."""
    cap = call.option("logits_soft_cap")
    return not has_bias and cap is None and call.option("scale") > 0


def logits_unit(call: CallSpec, *, has_bias: bool) -> float:
    """What a tile's logits and row maxima are multiplied with to become logits."""
    return call.option("scale") if is_scaled_product(call, has_bias=has_bias) else 1.0


class BlockStep:
    """The arithmetic on one block; [hb, R, bk] tiles throughout."""

    def __init__(
        self, call: CallSpec, dot_dtype: DotDtype, masking: Masking, dtype: Any
    ):
        self.masking = masking
        self.accumulate = jnp.promote_types(dtype, jnp.float32)
        self.dot_dtype = self.accumulate if dot_dtype == "float32" else dtype
        self.scale = call.option("scale")
        self.cap = call.option("logits_soft_cap")

        # Logits and their maximum are kept in units of 1 / unit. Where nothing is
        # added to the product, scaling only `product - max` keeps a difference
        # of large numbers exact, and the same in both passes.
        has_bias = masking.bias is not None
        self.is_raw = is_scaled_product(call, has_bias=has_bias)
        self.unit = logits_unit(call, has_bias=has_bias)

    def load(self, x: jax.Array) -> jax.Array:
        return x.astype(self.dot_dtype)

    def dot_t(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """[hb, R, X] x [hb, bk, X] -> [hb, R, bk]."""
        return self._dot(a, b, ((2,), (2,)))

    def dot(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """[hb, R, bk] x [hb, bk, X] -> [hb, R, X]."""
        return self._dot(a, b, ((2,), (1,)))

    def t_dot(self, rows: jax.Array, tile: jax.Array) -> jax.Array:
        """[hb, R, X] x [hb, R, bk] -> [hb, X, bk].

        The other way round, to [hb, bk, X], a CPU is 2 to 3 times slower: the
        operand that is packed transposed is then the large one.
        """
        return self._dot(rows, tile, ((1,), (1,)))

    def _dot(self, a: jax.Array, b: jax.Array, contract: Any) -> jax.Array:
        return lax.dot_general(
            a.astype(self.dot_dtype),
            b.astype(self.dot_dtype),
            (contract, ((0,), (0,))),
            preferred_element_type=self.accumulate,
        )

    def _raw_logits(
        self,
        q: jax.Array,
        k: jax.Array,
        cell: Index,
        i: Index,
        j: Index,
    ) -> jax.Array:
        logits = self.dot_t(q, k)
        if self.is_raw:
            return logits
        logits = logits * self.scale
        if self.masking.bias is not None:
            bias = self.masking.logits_block(self.masking.bias, cell, i, j)
            logits = self._on_grid(logits, lambda x: x + bias.astype(x.dtype))
        return logits if self.cap is None else self.cap * jnp.tanh(logits / self.cap)

    def logits(
        self,
        q: jax.Array,
        k: jax.Array,
        cell: Index,
        i: Index,
        j: Index,
        masked: bool,
    ) -> jax.Array:
        logits = self._raw_logits(q, k, cell, i, j)
        return self._mask(logits, -jnp.inf, cell, i, j) if masked else logits

    def weights(
        self,
        q: jax.Array,
        k: jax.Array,
        row_max: jax.Array,
        cell: Index,
        i: Index,
        j: Index,
        masked: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """exp of logit - row_max, and the slope of the soft cap."""
        logits = self._raw_logits(q, k, cell, i, j)
        slope = None if self.cap is None else 1 - (logits / self.cap) ** 2
        weights = jnp.exp((logits - row_max[..., None]) * self.unit)
        return (self._mask(weights, 0, cell, i, j) if masked else weights), slope

    def update(
        self,
        state: SoftmaxState,
        logits: jax.Array,
        v: jax.Array,
        cell: Index,
        i: Index,
        j: Index,
    ) -> SoftmaxState:
        m = jnp.maximum(state.m, logits.max(-1))
        shift = finite_or_zero(m)
        weights = jnp.exp((logits - shift[..., None]) * self.unit)
        alpha = jnp.exp((state.m - shift) * self.unit)
        total = state.l * alpha + weights.sum(-1)
        if self.masking.dropout is not None:
            weights = self._drop(weights, cell, i, j)
        out = state.o * alpha[..., None] + self.dot(weights, v)
        return SoftmaxState(m, total, out)

    @property
    def is_plain(self) -> bool:
        """The weights are a plain softmax of the scaled products."""
        masking = self.masking
        return self.is_raw and not masking.may_mask and masking.dropout is None

    def whole_rows(
        self, q: jax.Array, k: jax.Array, v: jax.Array
    ) -> tuple[jax.Array, ...]:
        """(out, log-sum-exp, row maximum, row sum) over all keys at once.

        In this form XLA runs product, softmax and product as one kernel on a
        CPU, if nobody needs the rest.
        """
        logits = self.dot_t(q, k)
        out = self.dot(jax.nn.softmax(logits * self.unit, axis=-1), v)
        m = lax.stop_gradient(logits.max(-1))
        total = jnp.exp((logits - m[..., None]) * self.unit).sum(-1)
        return out, jnp.log(total) + m * self.unit, m, total

    def dropped(
        self,
        dp: jax.Array,
        weights: jax.Array,
        cell: Index,
        i: Index,
        j: Index,
    ) -> tuple[jax.Array, jax.Array]:
        """Applies the forward's dropout to the cotangent and to the weights."""
        if self.masking.dropout is None:
            return dp, weights
        return self._drop(dp, cell, i, j), self._drop(weights, cell, i, j)

    def _drop(self, x: jax.Array, cell: Index, i: Index, j: Index) -> jax.Array:
        assert self.masking.dropout is not None
        kept = self.masking.kept(cell, i, j)
        scale = 1 / (1 - self.masking.dropout.rate)
        return self._on_grid(x, lambda y: jnp.where(kept, y * scale, 0))

    def _mask(
        self, x: jax.Array, value: float, cell: Index, i: Index, j: Index
    ) -> jax.Array:
        visible = self.masking.visible(cell, i, j)
        return self._on_grid(x, lambda y: jnp.where(visible, y, value))

    def _on_grid(self, x: jax.Array, fn: Any) -> jax.Array:
        """Applies fn to the tile seen as [hb, G, bq, bk]."""
        grid = self.masking.grid
        shaped = x.reshape(grid.block_heads, grid.group, grid.block_q, grid.block_kv)
        return fn(shaped).reshape(x.shape)
