"""Routing of one row at a time, in float64."""

from typing import Any

import numpy as np
import pytest


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def _best(values: np.ndarray, count: int) -> np.ndarray:
    """Largest first; the lower index of equal values first."""
    return np.argsort(-values, kind="stable")[:count]


def route_row(
    logits: np.ndarray,
    k: int,
    *,
    score: str = "softmax",
    normalize: str = "before",
    correction_bias: np.ndarray | None = None,
    num_groups: int | None = None,
    top_groups: int | None = None,
    renormalize: bool = False,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weights [K], experts [K], probs [E]) of logits [E]."""
    logits = np.asarray(logits, np.float64)
    scores = _softmax(logits) if score == "softmax" else 1 / (1 + np.exp(-logits))
    values = scores if correction_bias is None else scores + correction_bias
    if num_groups is not None:
        groups = values.reshape(num_groups, -1)
        best = _best(np.sort(groups, 1)[:, -2:].sum(1), top_groups)
        is_kept = np.isin(np.arange(num_groups), best)[:, None]
        values = np.where(is_kept, groups, -np.inf).reshape(-1)
    experts = _best(values, k)
    weights = scores[experts]
    if normalize == "after":
        weights = _softmax(logits[experts])
    if renormalize:
        weights = weights / weights.sum()
    return weights * scale, experts, scores / scores.sum()


@pytest.fixture(scope="session")
def route_rows():
    def run(logits: np.ndarray, k: int, **options: Any) -> tuple[np.ndarray, ...]:
        rows = [route_row(row, k, **options) for row in logits]
        return tuple(np.stack(x) for x in zip(*rows, strict=True))

    return run


@pytest.fixture(scope="session")
def assert_close():
    def check(actual: Any, expected: Any, eps: float = 2e-6) -> None:
        actual = np.asarray(actual).astype(np.float64)
        expected = np.asarray(expected).astype(np.float64)
        scale = max(1.0, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=eps * scale)

    return check
