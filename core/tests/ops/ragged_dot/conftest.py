"""Products of rows with the matrix of their group, one group at a time."""

from typing import Any

import numpy as np
import pytest


def dot_by_group(
    lhs: Any, rhs: Any, sizes: Any, bias: Any = None, offset: int = 0
) -> np.ndarray:
    """[M, N] in float64."""
    lhs, rhs = (np.asarray(x, np.float64) for x in (lhs, rhs))
    out = np.zeros((lhs.shape[0], rhs.shape[2]))
    ends = np.cumsum(sizes)
    for g in range(rhs.shape[0]):
        if offset + g < len(ends):
            rows = slice(ends[offset + g] - sizes[offset + g], ends[offset + g])
            out[rows] = lhs[rows] @ rhs[g]
            if bias is not None:
                out[rows] += np.asarray(bias, np.float64)[g]
    return out


def outer_by_group(lhs: Any, rhs: Any, sizes: Any) -> np.ndarray:
    """[G, K, N] in float64."""
    lhs, rhs = (np.asarray(x, np.float64) for x in (lhs, rhs))
    ends = np.cumsum(sizes)
    return np.stack([
        lhs[e - s : e].T @ rhs[e - s : e] for s, e in zip(sizes, ends, strict=True)
    ])  # fmt: skip


@pytest.fixture(scope="session")
def by_group():
    return dot_by_group


@pytest.fixture(scope="session")
def outer():
    return outer_by_group


@pytest.fixture(scope="session")
def assert_close():
    def check(actual: Any, expected: Any, eps: float = 2e-6) -> None:
        actual = np.asarray(actual).astype(np.float64)
        expected = np.asarray(expected).astype(np.float64)
        scale = max(1.0, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=eps * scale)

    return check


@pytest.fixture(scope="session")
def random_array():
    def make(seed: int, *shape: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    return make
