"""The arithmetic on one block of tokens and one block of keys.

K key heads, G query heads a key head, w tokens, R = G * w rows, c keys,
H head dim, D value dim. The rows of a tile are ordered (query head, token).
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import Arrays, CallSpec
from tokumx.ops.ragged_paged_attention.pages import Block
from tokumx.pallas_lib.online_softmax import SoftmaxState, finite_or_zero

DotDtype = Literal["float32", "input"]


class BlockStep:
    """One step of the online softmax; tiles are [K, R, c]."""

    def __init__(
        self,
        arrays: Arrays,
        call: CallSpec,
        kv_heads: int,
        key_dot: DotDtype,
        value_dot: DotDtype,
    ):
        dtype = arrays["query"].dtype
        self.kv_heads = kv_heads
        self.accumulate = jnp.promote_types(dtype, jnp.float32)
        self.key_dtype = self.accumulate if key_dot == "float32" else dtype
        self.value_dtype = self.accumulate if value_dot == "float32" else dtype
        self.cap = call.option("logits_soft_cap")
        # A scalar, or [K or 1, 1, 1].
        self.scale: Any = call.option("scale")
        if "key_scale" in arrays:
            self.scale = self.scale * self._by_head(arrays["key_scale"])
        self.value_scale = (
            self._by_head(arrays["value_scale"]) if "value_scale" in arrays else None
        )
        # Logits and their maximum are kept in units of 1 / unit. Where nothing
        # but a number scales the product, scaling only `product - max` keeps a
        # difference of large numbers exact.
        has_key_scale = any(n.startswith("key_scale") for n in arrays)
        self.is_plain = (
            self.cap is None and not has_key_scale and call.option("scale") > 0
        )
        self.unit: float = call.option("scale") if self.is_plain else 1.0

    def _by_head(self, x: jax.Array) -> jax.Array:
        return x.astype(self.accumulate)[:, None, None]

    def load_query(self, x: jax.Array) -> jax.Array:
        """[w, N, H] -> [K, R, H]."""
        w, n, h = x.shape
        x = x.reshape(w, self.kv_heads, n // self.kv_heads, h)
        x = x.astype(self.key_dtype).transpose(1, 2, 0, 3)
        return x.reshape(self.kv_heads, -1, h)

    def logits(self, q: jax.Array, block: Block) -> jax.Array:
        """[K, R, H] x [K, c, H] -> [K, R, c]."""
        logits = self._dot(q, block.key, ((2,), (2,)))
        if self.is_plain:
            return logits
        logits = logits * self.scale
        if block.key_scale is not None:
            logits = logits * block.key_scale.astype(self.accumulate)
        return logits if self.cap is None else self.cap * jnp.tanh(logits / self.cap)

    def update(
        self, state: SoftmaxState, logits: jax.Array, block: Block
    ) -> SoftmaxState:
        m = jnp.maximum(state.m, logits.max(-1))
        shift = finite_or_zero(m)
        weights = jnp.exp((logits - shift[..., None]) * self.unit)
        alpha = jnp.exp((state.m - shift) * self.unit)
        total = state.l * alpha + weights.sum(-1)
        if block.value_scale is not None:
            weights = weights * block.value_scale.astype(self.accumulate)
        out = state.o * alpha[..., None] + self._dot(weights, block.value, ((2,), (1,)))
        return SoftmaxState(m, total, out)

    def _dot(self, a: jax.Array, b: jax.Array, contract: Any) -> jax.Array:
        return lax.dot_general(
            a.astype(b.dtype),
            b,
            (contract, ((0,), (0,))),
            preferred_element_type=self.accumulate,
        )


def masked_logits(logits: jax.Array, visible: jax.Array) -> jax.Array:
    """[K, R, c] with -inf where `visible`, [w, c], is False."""
    w, c = visible.shape
    grid = logits.reshape(logits.shape[0], -1, w, c)
    return jnp.where(visible, grid, -jnp.inf).reshape(logits.shape)


def without_garbage(block: Block, written: jax.Array) -> Block:
    """The block with zero values where `written`, [c], is False.

    A slot that was never written may hold a NaN, which a weight of 0 would
    not remove.
    """
    value = jnp.where(written[:, None], block.value, jnp.zeros((), block.value.dtype))
    scale = block.value_scale
    scale = None if scale is None else jnp.where(written, scale, 0)
    return block._replace(value=value, value_scale=scale)
