"""Ragged batches over a paged cache, and their attention in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest


@dataclass
class Batch:
    """Sequences of known keys, and the same keys spread over pages.

    Every slot that holds no key is NaN, so is page 0, and the entries of
    page_table beyond a sequence's pages are garbage: a kernel that lets any of
    it into a result is found out. Rows of query past the last token are NaN.
    """

    query: np.ndarray  # [T, N, H]
    keys: list[np.ndarray]  # of each sequence, [s, K, H]
    values: list[np.ndarray]  # [s, K, D]
    new_tokens: Sequence[int]
    starts: np.ndarray
    lengths: np.ndarray
    table: np.ndarray
    page_size: int
    num_pages: int

    def paged(self, rows: Sequence[np.ndarray], fill: float = np.nan) -> np.ndarray:
        """[s, ...] of each sequence -> [num_pages, page_size, ...]."""
        shape = (self.num_pages, self.page_size, *rows[0].shape[1:])
        pages = np.full(shape, fill, np.float32)
        for i, x in enumerate(rows):
            for position, one in enumerate(x):
                page = self.table[i, position // self.page_size]
                pages[page, position % self.page_size] = one
        return pages

    @property
    def key_cache(self) -> np.ndarray:
        return self.paged(self.keys)

    @property
    def value_cache(self) -> np.ndarray:
        return self.paged(self.values)

    @property
    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.starts, self.lengths, self.table

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        return (self.query, self.key_cache, self.value_cache, *self.tables)

    def truth(
        self,
        sees: Callable[[int, int], bool] = lambda query, key: key <= query,
        scale: float | None = None,
        logits_soft_cap: float | None = None,
        sinks: np.ndarray | None = None,
        keys: Sequence[np.ndarray] | None = None,
        values: Sequence[np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(out, log-sum-exp); `sees(query position, key position)`."""
        keys, values = keys or self.keys, values or self.values
        tokens, heads, dim = self.query.shape
        scale = dim**-0.5 if scale is None else scale
        out = np.zeros((tokens, heads, values[0].shape[2]))
        lse = np.full((tokens, heads), -np.inf)
        group = heads // keys[0].shape[1]
        for i, (k, v) in enumerate(zip(keys, values, strict=True)):
            for t in range(self.new_tokens[i]):
                row, position = self.starts[i] + t, len(k) - self.new_tokens[i] + t
                visible = np.array([sees(position, p) for p in range(len(k))], bool)
                for n in range(heads):
                    logits = k[visible, n // group].astype(np.float64) @ (
                        self.query[row, n].astype(np.float64) * scale
                    )
                    if logits_soft_cap is not None:
                        logits = logits_soft_cap * np.tanh(logits / logits_soft_cap)
                    sink = None if sinks is None else sinks[n]
                    out[row, n], lse[row, n] = _softmax(
                        logits, v[visible, n // group].astype(np.float64), sink
                    )
        return out, lse


def _softmax(logits: np.ndarray, values: np.ndarray, sink: Any) -> tuple[Any, Any]:
    everything = logits if sink is None else np.append(logits, sink)
    if not everything.size:
        return np.zeros(values.shape[1]), -np.inf
    top = everything.max()
    total = np.exp(everything - top).sum()
    return np.exp(logits - top) @ values / total, top + np.log(total)


@dataclass
class Maker:
    """Makes batches; the sizes are the smallest that have grouped heads."""

    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (8, 6)
    garbage: Sequence[int] = field(default=(-1, 10**6, -(2**31), 2**31 - 1))

    def __call__(
        self,
        new_tokens: Sequence[int],
        lengths: Sequence[int],
        page_size: int = 4,
        *,
        heads: tuple[int, int] | None = None,
        dims: tuple[int, int] | None = None,
        padding: int = 3,
        spare_pages: int = 2,
        seed: int = 0,
    ) -> Batch:
        rng = np.random.default_rng(seed)
        n, k = heads or self.heads
        h, d = dims or self.dims
        needed = [-(-s // page_size) for s in lengths]
        table = rng.choice(self.garbage, (len(lengths), max(needed) + spare_pages))
        pages = rng.permutation(sum(needed)) + 1
        for row, count in zip(table, needed, strict=True):
            row[:count], pages = pages[:count], pages[count:]
        query = rng.standard_normal((sum(new_tokens) + padding, n, h), np.float32)
        query[sum(new_tokens) :] = np.nan
        return Batch(
            query=query,
            keys=[rng.standard_normal((s, k, h), np.float32) for s in lengths],
            values=[rng.standard_normal((s, k, d), np.float32) for s in lengths],
            new_tokens=new_tokens,
            starts=np.cumsum([0, *new_tokens], dtype=np.int32),
            lengths=np.array(lengths, np.int32),
            table=table.astype(np.int32),
            page_size=page_size,
            num_pages=sum(needed) + 1,
        )


@pytest.fixture(scope="session")
def make_batch():
    return Maker()


@pytest.fixture(scope="session")
def assert_close():
    def check(actual: Any, expected: Any, eps: float = 5e-6) -> None:
        actual = np.asarray(actual).astype(np.float64)
        np.testing.assert_allclose(actual, expected, rtol=eps, atol=eps)

    return check
