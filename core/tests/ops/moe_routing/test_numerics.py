"""Errors against float64, every implementation, dtype and distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.numerics import DISTRIBUTIONS, check, sample

OPTIONS = {
    "softmax": {},
    "renormalized": {"renormalize": True, "scale": 2.5},
    "after": {"normalize": "after"},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid_renormalized": {"score": "sigmoid", "renormalize": True},
}
DTYPES = ("float32", "bfloat16", "float16")


def weights_and_probs(logits, **kwargs):
    found = tokumx.top_k_routing(logits, 3, **kwargs)
    return found.weights, found.probs


def rows_of(x, experts, num_experts, **kwargs):
    return tokumx.moe_permute(x, experts, num_experts, **kwargs).rows


weights_and_probs.__name__ = "top_k_routing"
rows_of.__name__ = "moe_permute"


CASES = [
    *((option, "float32", d) for option in OPTIONS for d in DISTRIBUTIONS),
    *(("renormalized", dtype, "huge") for dtype in DTYPES[1:]),
]


@pytest.mark.parametrize(("option", "dtype", "distribution"), CASES)
def test_top_k_routing_error_is_within_budget(option, dtype, distribution):
    """bf16 and f16 logits become f32 first, so that they have f32 budgets."""
    logits = sample(distribution, 0, (63, 17), dtype)
    for implementation in ("xla", "xla_rounds"):
        check(
            weights_and_probs, logits, **OPTIONS[option], implementation=implementation
        ).raise_if_wrong()


@pytest.mark.parametrize(
    ("dtype", "tokens"),
    [*(("float32", t) for t in (1, 63, 257)), ("bfloat16", 63), ("float16", 63)],
)
def test_moe_permute_and_unpermute_errors_are_within_budget(dtype, tokens):
    rng = np.random.default_rng(tokens)
    k, num_experts, d = 3, 5, 33
    experts = rng.integers(0, num_experts, (tokens, k), np.int32)
    for seed, distribution in enumerate(("normal", "activation", "huge")):
        x = sample(distribution, seed, (tokens, d), dtype)
        rows = sample(distribution, seed + 9, (tokens * k, d), dtype)
        weights = sample("normal", seed, (tokens, k))
        permutation = tokumx.moe_permute(x, experts, num_experts).permutation
        check(
            rows_of, x, experts, num_experts, implementation="xla_gather"
        ).raise_if_wrong()
        check(
            tokumx.moe_unpermute,
            rows,
            permutation,
            weights,
            implementation="xla_gather",
        ).raise_if_wrong()


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_top_k_routing_returns_f32_or_f64(dtype):
    with jax.enable_x64(True):
        found = tokumx.top_k_routing(jnp.ones((2, 4), dtype), 2)
    expected = "float64" if dtype == "float64" else "float32"
    assert found.weights.dtype == found.probs.dtype == expected
    assert found.experts.dtype == "int32"
