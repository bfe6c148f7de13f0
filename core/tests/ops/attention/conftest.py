"""Operands, and attention computed one row at a time in float64."""

from typing import Any

import numpy as np
import pytest


def random_array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def one_row(logits: np.ndarray, visible: np.ndarray, value: np.ndarray, sink: Any):
    """Softmax of one query over the keys it sees: (output, log-sum-exp)."""
    seen = logits[visible]
    everything = seen if sink is None else np.append(seen, sink)
    if not everything.size:
        return np.zeros(value.shape[1]), -np.inf
    top = everything.max()
    total = np.exp(everything - top).sum()
    weights = np.exp(seen - top) / total
    return weights @ value[visible], top + np.log(total)


def attention_by_rows(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    sees: Any,
    *,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    logits_soft_cap: float | None = None,
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """`sees(b, n, t, s)` says whether query t sees key s."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, length, heads, dim = query.shape
    keys, group = key.shape[1], heads // key.shape[2]
    scale = dim**-0.5 if scale is None else scale
    out = np.zeros((batch, length, heads, value.shape[3]))
    lse = np.zeros((batch, length, heads))
    for b, n, t in np.ndindex(batch, heads, length):
        k, v = key[b, :, n // group], value[b, :, n // group]
        logits = k @ query[b, t, n] * scale
        if bias is not None:
            shape = (batch, heads, length, keys)
            logits = logits + np.broadcast_to(bias, shape)[b, n, t]
        if logits_soft_cap is not None:
            logits = logits_soft_cap * np.tanh(logits / logits_soft_cap)
        visible = np.array([bool(sees(b, n, t, s)) for s in range(keys)])
        sink = None if sinks is None else float(sinks[n])
        out[b, t, n], lse[b, t, n] = one_row(logits, visible, v, sink)
    return out, lse


@pytest.fixture
def truth():
    return attention_by_rows


@pytest.fixture
def rand():
    return random_array
