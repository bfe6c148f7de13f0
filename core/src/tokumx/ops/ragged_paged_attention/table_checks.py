"""Checks of the values in the tables that describe a ragged batch.

R rows, W pages a row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tokumx.debug import check_values, is_on


class Limits(NamedTuple):
    """What the values must fit in; left is how far back a token sees."""

    tokens: int
    num_pages: int
    page_size: int
    left: int | None


class _Tables(NamedTuple):
    """The rows in use."""

    starts: np.ndarray  # [R + 1]
    lengths: np.ndarray  # [R]
    pages: np.ndarray  # [R, W]

    @property
    def new_tokens(self) -> np.ndarray:
        return np.diff(self.starts)


def check_tables(
    op: str, starts: Any, lengths: Any, pages: Any, count: Any, limits: Limits
) -> None:
    """Raises ValueError for tables that describe no batch.

    numpy tables are always checked, others under debug checks only; sizes
    that are symbolic switch the checks off.
    """
    if not all(isinstance(d, int) for d in limits[:3]):
        return
    rows, width = np.shape(pages)
    parts = (rows if count is None else count, starts, lengths, pages)

    def find_error(packed: np.ndarray) -> ValueError | None:
        ends = np.cumsum([1, rows + 1, rows]).tolist()
        used, starts, lengths, pages = np.split(packed, ends)
        n = int(used[0])
        message = _count_error(n, rows)
        if message is None:
            pages = pages.reshape(rows, width)
            tables = _Tables(starts[: n + 1], lengths[:n], pages[:n])
            message = (
                _starts_error(tables, limits)
                or _lengths_error(tables, limits)
                or _pages_error(tables, limits)
            )
        return None if message is None else ValueError(f"{op}: {message}")

    _check_packed(parts, find_error)


def _check_packed(
    parts: tuple[Any, ...], find_error: Callable[[np.ndarray], ValueError | None]
) -> None:
    """check_values of the parts, flattened and joined into one array."""
    if all(isinstance(x, int | list | np.ndarray | np.generic) for x in parts):
        check_values(np.concatenate([np.ravel(x) for x in parts]), find_error)
    elif is_on():
        check_values(jnp.concatenate([jnp.ravel(x) for x in parts]), find_error)


def _count_error(count: int, rows: int) -> str | None:
    if 0 <= count <= rows:
        return None
    return (
        f"num_seqs must be in [0, {rows}]; got {count}. "
        "Count the rows of seq_lens in use."
    )


def _starts_error(tables: _Tables, limits: Limits) -> str | None:
    starts = tables.starts
    if starts[0] == 0 and starts[-1] <= limits.tokens and (np.diff(starts) >= 0).all():
        return None
    return (
        f"query_start_loc must ascend from 0 to at most num_tokens = {limits.tokens}; "
        f"got {starts.tolist()}. Repeat the last entry in unused rows."
    )


def _lengths_error(tables: _Tables, limits: Limits) -> str | None:
    capacity = tables.pages.shape[1] * limits.page_size
    new, lengths = tables.new_tokens, tables.lengths
    wrong = np.flatnonzero((lengths < new) | (lengths > capacity))
    if not wrong.size:
        return None
    i = wrong[0]
    return (
        "seq_lens must be at least the new tokens and at most max_pages_per_seq * "
        f"page_size = {capacity}; got {lengths[i]} in row {i}, with {new[i]} new "
        "tokens. Count the new tokens in, and widen page_table for longer sequences."
    )


def _pages_error(tables: _Tables, limits: Limits) -> str | None:
    new, lengths = tables.new_tokens, tables.lengths
    first = np.zeros_like(lengths)  # position of the first key that is seen
    if limits.left is not None:
        first = np.maximum(lengths - new - limits.left, 0)
    start = np.arange(tables.pages.shape[1]) * limits.page_size
    is_read = (start < lengths[:, None]) & (new > 0)[:, None]
    is_read &= start + limits.page_size > first[:, None]
    is_wrong = (tables.pages < 0) | (tables.pages >= limits.num_pages)
    wrong = np.argwhere(is_read & is_wrong)
    if not wrong.size:
        return None
    i, j = wrong[0]
    return (
        f"page_table must hold pages in [0, {limits.num_pages}) where keys are seen; "
        f"got {tables.pages[i, j]} in row {i}, entry {j}. Give the sequence its pages."
    )
