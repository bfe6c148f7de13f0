"""Losses of one token at a time, in float64, and what the tests share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.ops.linear_softmax_cross_entropy import xla_blocked

# Tiles that fit neither axis of the tests' arrays.
SMALL_TILES = xla_blocked.Config(block_rows=16, block_vocab=100, dot_dtype="float32")
CONFIG = {"xla": None, "xla_blocked": SMALL_TILES}


def token_loss(
    logits: np.ndarray,
    label: int,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logits_soft_cap: float | None = None,
    temperature: float = 1.0,
) -> float:
    """Of logits [V] before the cap; -inf logits are of removed words."""
    removed = np.isneginf(logits)
    if logits_soft_cap is not None:
        logits = logits_soft_cap * np.tanh(logits / logits_soft_cap)
    z = np.where(removed, -np.inf, logits / temperature)
    lse = np.logaddexp.reduce(z)
    loss = (1 - label_smoothing) * (lse - z[label]) + z_loss * lse**2
    if label_smoothing:
        loss += label_smoothing * (lse - z[~removed].mean())
    return loss


@pytest.fixture(scope="session")
def expected_losses():
    def run(x: Any, weight: Any, labels: Any, bias: Any = 0.0, **options: Any):
        x, weight, bias = (np.asarray(a, np.float64) for a in (x, weight, bias))
        ignored = options.pop("ignore_index", -100)
        logits = x @ weight + bias
        return np.array(
            [
                0.0 if y == ignored else token_loss(row, y, **options)
                for row, y in zip(logits, np.asarray(labels), strict=True)
            ]
        )

    return run


@pytest.fixture(params=list(CONFIG))
def how(request):
    """Keyword arguments that choose an implementation, with small tiles."""
    return {"implementation": request.param, "config": CONFIG[request.param]}


@pytest.fixture(scope="session")
def operands():
    """(x, weight, labels, bias) as float32; every fifth token is ignored."""

    def make(tokens: Any, d: int, v: int, seed: int = 0, dtype: Any = jnp.float32):
        rng = np.random.default_rng(seed)
        shape = (tokens,) if isinstance(tokens, int) else tokens
        labels = rng.integers(0, v, shape, np.int32)
        labels.reshape(-1)[3::5] = -100
        x, weight, bias = (
            jnp.asarray(rng.standard_normal(s, np.float32), dtype)
            for s in ((*shape, d), (d, v), (v,))
        )
        return x, weight, labels, bias

    return make


@pytest.fixture(scope="session")
def assert_close():
    def check(actual: Any, expected: Any, eps: float = 2e-6) -> None:
        leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
        for a, e in leaves:
            a, e = (np.asarray(n).astype(np.float64) for n in (a, e))
            scale = max(1.0, np.abs(e[np.isfinite(e)]).max(initial=0))
            np.testing.assert_allclose(a, e, rtol=0, atol=eps * scale)

    return check


@pytest.fixture(scope="session")
def loss_and_gradients():
    """Jitted (loss, gradients of x, weight, bias) of one way to call the op."""

    def make(**options: Any):
        def loss(x, weight, bias, labels):
            return tokumx.linear_softmax_cross_entropy(
                x, weight, labels, bias=bias, **options
            )

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))

    return make
