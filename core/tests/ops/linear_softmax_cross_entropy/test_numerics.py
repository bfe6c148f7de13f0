"""Errors against float64, every implementation, dtype and distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.numerics import DISTRIBUTIONS, check, sample

EVERYTHING = {
    "label_smoothing": 0.1,
    "z_loss": 1e-3,
    "logits_soft_cap": 30.0,
    "temperature": 0.7,
    "reduction": "none",
}
CASES = [
    *(("float32", d, (63, 33, 507), {}) for d in DISTRIBUTIONS),
    ("float32", "normal", (63, 33, 507), EVERYTHING),
    ("float32", "activation", (17, 8, 4097), {"reduction": "none"}),
    ("float32", "normal", (1, 5, 1), {}),
    ("float32", "normal", (1, 5, 507), EVERYTHING),
    ("bfloat16", "normal", (63, 33, 507), {}),
    ("bfloat16", "activation", (63, 33, 507), EVERYTHING),
    ("float16", "normal", (63, 33, 507), EVERYTHING),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "distribution", "sizes", "options"), CASES)
def test_cross_entropy_error_is_within_budget(dtype, distribution, sizes, options, how):
    tokens, d, v = sizes
    labels = np.random.default_rng(0).integers(0, v, tokens, np.int32)
    labels[3::5] = -100
    check(
        tokumx.linear_softmax_cross_entropy,
        sample(distribution, 0, (tokens, d), dtype),
        sample("normal", 1, (d, v), dtype),
        labels,
        bias=sample("normal", 2, (v,), dtype),
        loss_weights=sample("normal", 3, (tokens,)),
        **options,
        **how,
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probs_error_is_within_budget_with_a_tied_embedding(dtype, how):
    labels = np.random.default_rng(0).integers(0, 507, (3, 21), np.int32)
    check(
        tokumx.linear_token_log_probs,
        sample("normal", 0, (3, 21, 33), dtype),
        sample("normal", 1, (507, 33), dtype),
        labels,
        temperature=0.8,
        weight_layout="vd",
        **how,
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_cross_entropy_returns_f32_or_f64_and_gradients_of_the_operands_dtypes(
    dtype, how, operands
):
    with jax.enable_x64(True):
        x, weight, labels, _ = operands(7, 5, 11, dtype=dtype)

        def loss(x, weight):
            return tokumx.linear_softmax_cross_entropy(x, weight, labels, **how)

        value, (dx, dw) = jax.value_and_grad(loss, (0, 1))(x, weight)
    assert value.dtype == ("float64" if dtype == "float64" else "float32")
    assert dx.dtype == dw.dtype == dtype


def test_cross_entropy_weight_gradient_is_rounded_once(how, operands):
    """256 tokens give each word nearly the same: a bf16 sum would stop growing."""
    tokens, d, v = 1024, 4, 128
    x = jnp.ones((tokens, d), jnp.bfloat16)
    weight = jnp.zeros((d, v), jnp.bfloat16)
    labels = np.zeros(tokens, np.int32)

    def loss(weight):
        return tokumx.linear_softmax_cross_entropy(
            x, weight, labels, reduction="sum", **how
        )

    gradient = jax.jit(jax.grad(loss))(weight)
    np.testing.assert_array_equal(gradient[:, 1:].astype(np.float32), tokens / v)
    first = jnp.asarray(tokens / v - tokens, jnp.bfloat16)
    np.testing.assert_array_equal(gradient[:, 0], first)


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_cross_entropy_of_logits_with_a_huge_common_offset(
    offset, how, operands, assert_close, loss_and_gradients
):
    """Through the bias; what a bias of 1e4 rounds away is put into the weight."""
    x, weight, labels, _ = operands(21, 6, 203)
    x, weight = jnp.round(x * 8) / 8, jnp.round(weight * 8) / 8  # products are exact
    step = loss_and_gradients(z_loss=0.0, label_smoothing=0.1, **how)
    plain = step(x, weight, jnp.zeros(203), labels)
    shifted = step(x, weight, jnp.full(203, offset), labels)
    assert_close(shifted, plain, 1e-3)  # logits of 1e4 have a spacing of 1e-3
    assert abs(shifted[0] - plain[0]) < 1e-5


def test_cross_entropy_of_logits_with_a_huge_offset_through_x(
    how, operands, loss_and_gradients, assert_close
):
    x, weight, labels, bias = operands(21, 6, 203)
    weight = weight.at[0].set(1.0)
    step = loss_and_gradients(**how)
    plain = step(x.at[:, 0].set(0.0), weight, bias, labels)
    shifted = step(x.at[:, 0].set(1e4), weight, bias, labels)
    assert_close(shifted[0], plain[0], 1e-3)
    assert_close(shifted[1][2], plain[1][2], 1e-3)
    assert all(np.isfinite(g).all() for g in shifted[1])
