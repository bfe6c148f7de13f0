"""Reads pages of the cache as blocks of keys and values.

P pages in the cache, p pages read, s slots a page, K key heads, H head dim,
D value dim, c keys read = p * s. The arrays come under one of these names:

  key_cache, value_cache            [P, s, K, H], [P, s, K, D]
  kv_cache                          [P, s, K, H + D], the key first
  key_scale_pages, value_scale_...  [P, s, K]

and with the suffix _hnd as [P, K, s, ...], since the axes of an array follow
from its name. A block is [K, c, *] whatever the layout.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import Arrays, CallSpec

HEADS_MAJOR = "_hnd"


def page_size_and_heads(call: CallSpec) -> tuple[int, int]:
    """s and K of a call."""
    name = next(n for n in call if n.startswith(("key_cache", "kv_cache")))
    a, b = call[name].size(1), call[name].size(2)
    return (b, a) if name.endswith(HEADS_MAJOR) else (a, b)


class Block(NamedTuple):
    """Keys and values of some pages, and their scales."""

    key: jax.Array  # [K, c, H]
    value: jax.Array  # [K, c, D]
    key_scale: jax.Array | None  # [K, 1, c]
    value_scale: jax.Array | None  # [K, 1, c]


@dataclass(frozen=True)
class Cache:
    """The cache's arrays in one layout."""

    key: jax.Array
    value: jax.Array | None  # None: key holds both
    key_scale: jax.Array | None
    value_scale: jax.Array | None
    is_heads_major: bool
    key_dim: int

    @classmethod
    def of(cls, arrays: Arrays) -> "Cache":
        is_heads_major = any(name.endswith(HEADS_MAJOR) for name in arrays)
        suffix = HEADS_MAJOR if is_heads_major else ""
        both = arrays.get(f"kv_cache{suffix}")
        return cls(
            key=arrays[f"key_cache{suffix}"] if both is None else both,
            value=arrays[f"value_cache{suffix}"] if both is None else None,
            key_scale=arrays.get(f"key_scale_pages{suffix}"),
            value_scale=arrays.get(f"value_scale_pages{suffix}"),
            is_heads_major=is_heads_major,
            key_dim=arrays["query"].shape[2],
        )

    @property
    def page_size(self) -> int:
        return self.key.shape[2 if self.is_heads_major else 1]

    @property
    def kv_heads(self) -> int:
        return self.key.shape[1 if self.is_heads_major else 2]

    @property
    def value_dim(self) -> int:
        if self.value is None:
            return self.key.shape[3] - self.key_dim
        return self.value.shape[3]

    @property
    def dtypes(self) -> set[Any]:
        return {x.dtype for x in (self.key, self.value) if x is not None}

    def read(self, pages: jax.Array, key_dtype: Any, value_dtype: Any) -> Block:
        """The block of these pages, [p] int32; ids out of range are clamped."""
        pages = jnp.clip(pages, 0, self.key.shape[0] - 1)
        if self.value is None:
            both = self._block(self.key, pages, self.key.dtype)
            key, value = both[..., : self.key_dim], both[..., self.key_dim :]
            key, value = key.astype(key_dtype), value.astype(value_dtype)
        else:
            key = self._block(self.key, pages, key_dtype)
            value = self._block(self.value, pages, value_dtype)
        return Block(
            key,
            value,
            self._scale_block(self.key_scale, pages),
            self._scale_block(self.value_scale, pages),
        )

    def _scale_block(
        self, scale: jax.Array | None, pages: jax.Array
    ) -> jax.Array | None:
        if scale is None:
            return None
        return self._block(scale, pages, scale.dtype)[:, None]

    def _block(self, x: jax.Array, pages: jax.Array, dtype: Any) -> jax.Array:
        """[P, s, K, *] or [P, K, s, *] -> [K, c, *].

        The barrier makes the cache depend on the pages: where XLA converts
        before it gathers, the conversion cannot leave the caller's loop, in
        which it would be one of the whole cache.
        """
        x, pages = lax.optimization_barrier((x, pages))
        x = x.at[pages].get(mode="promise_in_bounds").astype(dtype)
        x = jnp.moveaxis(x, 1 if self.is_heads_major else 2, 0)  # [K, p, s, *]
        return x.reshape(x.shape[0], -1, *x.shape[3:])
