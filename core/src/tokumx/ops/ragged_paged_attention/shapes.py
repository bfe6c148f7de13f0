"""Named shapes, with the model each comes from.

Sizes of heads and pages are the model's, or one device's share of it; lengths
are cut to what a CPU runs in well under a second.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Shape:
    """One batch of a serving engine.

    Attributes:
      name: unique, says the model and what the batch holds.
      source: the model, and which part of it.
      query_heads, kv_heads, head_dim: of one layer, on one device.
      page_size: keys in a page.
      new_tokens, seq_lens: of each sequence.
      window: local_window_size.
      has_sinks: one sink a query head.
      cache_layout: "NHD" or "HND".
      spare_pages: pages of page_table that no sequence reaches, per row.
    """

    name: str
    source: str
    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    new_tokens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    window: tuple[int | None, int | None] | None = None
    has_sinks: bool = False
    cache_layout: str = "HND"
    spare_pages: int = 0

    def inputs(
        self, dtype: Any = jnp.float32, cache_dtype: Any = None, seed: int = 0
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of ragged_paged_attention.

        Args:
          dtype: of query, and of the cache where cache_dtype is None.
          cache_dtype: int8 and float8 caches get a scale for each key head.
          seed: of the numbers and of the order of the pages.
        """
        rng = np.random.default_rng(seed)
        table = self._page_table(rng)
        sizes = (self.page_size, self.kv_heads)
        sizes = sizes if self.cache_layout == "NHD" else sizes[::-1]
        shape = (int(table.max()) + 1, *sizes, self.head_dim)
        query = rng.standard_normal(
            (sum(self.new_tokens), self.query_heads, self.head_dim), np.float32
        )
        cache_dtype = jnp.dtype(dtype if cache_dtype is None else cache_dtype)
        keywords: dict[str, Any] = {"cache_layout": self.cache_layout}
        if cache_dtype.itemsize == 1:
            scales = rng.uniform(0.02, 0.03, (2, self.kv_heads)).astype(np.float32)
            keywords |= {"key_scale": scales[0], "value_scale": scales[1]}
        if self.window is not None:
            keywords["local_window_size"] = self.window
        if self.has_sinks:
            keywords["sinks"] = rng.standard_normal(self.query_heads, np.float32)
        arguments = (
            jnp.asarray(query, dtype),
            _cache(rng, shape, cache_dtype),
            _cache(rng, shape, cache_dtype),
            np.cumsum([0, *self.new_tokens], dtype=np.int32),
            np.asarray(self.seq_lens, np.int32),
            table,
        )
        return arguments, keywords

    def _page_table(self, rng: np.random.Generator) -> np.ndarray:
        """Pages in random order, none shared; page 0 stands for none."""
        needed = [-(-s // self.page_size) for s in self.seq_lens]
        pages = rng.permutation(sum(needed)).astype(np.int32) + 1
        table = np.zeros((len(needed), max(needed) + self.spare_pages), np.int32)
        for row, n in zip(table, needed, strict=True):
            row[:n], pages = pages[:n], pages[n:]
        return table


def _cache(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    values = rng.standard_normal(shape, np.float32)
    if jnp.dtype(dtype).itemsize == 1:  # to be multiplied with a scale
        values = np.clip(values * 40, -127, 127)
    return jnp.asarray(values).astype(dtype)


def _ragged(count: int, longest: int, seed: int) -> tuple[int, ...]:
    """Lengths between half of `longest` and all of it."""
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(longest // 2, longest, count, endpoint=True).tolist())


_LLAMA = "Llama 3 8B (arXiv:2407.21783)"
_QWEN = "Qwen3 8B (arXiv:2505.09388)"
_GEMMA = "Gemma 3 4B (arXiv:2503.19786)"
_GPT_OSS = "gpt-oss 20B (arXiv:2508.10925)"

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape(
            "llama3_8b-decode",
            f"{_LLAMA}: 16 sequences decoding, one of four tensor-parallel devices",
            query_heads=8,
            kv_heads=2,
            head_dim=128,
            page_size=16,
            new_tokens=(1,) * 16,
            seq_lens=_ragged(16, 4096, seed=0),
        ),
        Shape(
            "llama3_8b-decode-all_heads",
            f"{_LLAMA}: 8 sequences decoding, all heads",
            query_heads=32,
            kv_heads=8,
            head_dim=128,
            page_size=16,
            new_tokens=(1,) * 8,
            seq_lens=_ragged(8, 2048, seed=1),
        ),
        Shape(
            "llama3_8b-mixed",
            f"{_LLAMA}: one chunk of a prefill beside 7 sequences decoding",
            query_heads=8,
            kv_heads=2,
            head_dim=128,
            page_size=16,
            new_tokens=(256, *(1,) * 7),
            seq_lens=(768, *_ragged(7, 2048, seed=2)),
        ),
        Shape(
            "qwen3_8b-prefill",
            f"{_QWEN}: four prompts at once, one of four tensor-parallel devices",
            query_heads=8,
            kv_heads=2,
            head_dim=128,
            page_size=64,
            new_tokens=(512, 300, 17, 129),
            seq_lens=(512, 300, 17, 129),
            cache_layout="NHD",
        ),
        Shape(
            "qwen3_8b-speculative",
            f"{_QWEN}: 8 sequences with 4 draft tokens to verify",
            query_heads=8,
            kv_heads=2,
            head_dim=128,
            page_size=64,
            new_tokens=(5,) * 8,
            seq_lens=_ragged(8, 2048, seed=3),
            cache_layout="NHD",
        ),
        Shape(
            "gemma3_4b-local-decode",
            f"{_GEMMA}: local layer, window of 1024",
            query_heads=8,
            kv_heads=4,
            head_dim=256,
            page_size=16,
            new_tokens=(1,) * 8,
            seq_lens=_ragged(8, 4096, seed=4),
            window=(1023, 0),
        ),
        Shape(
            "gpt_oss_20b-local-mixed",
            f"{_GPT_OSS}: local layer, window of 128, sinks; one of four devices",
            query_heads=16,
            kv_heads=2,
            head_dim=64,
            page_size=16,
            new_tokens=(1, 1, 200, 1, 64, 1, 1, 1),
            seq_lens=(900, 1500, 200, 64, 700, 2000, 129, 1),
            window=(127, 0),
            has_sinks=True,
        ),
        Shape(
            "gpt_oss_20b-full-decode",
            f"{_GPT_OSS}: full layer, sinks; one of four devices",
            query_heads=16,
            kv_heads=2,
            head_dim=64,
            page_size=16,
            new_tokens=(1,) * 16,
            seq_lens=_ragged(16, 2048, seed=5),
            has_sinks=True,
            spare_pages=32,
        ),
        Shape(
            "mha-decode",
            "8 heads of 64 without grouping, GPT-2 style (a small draft model)",
            query_heads=8,
            kv_heads=8,
            head_dim=64,
            page_size=64,
            new_tokens=(1,) * 8,
            seq_lens=_ragged(8, 4096, seed=6),
            cache_layout="NHD",
        ),
    )
}
