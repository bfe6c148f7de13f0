"""Dropout, and the calls that Flax's own function runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from tokumx_flax import dot_product_attention

RATE = 0.25


def dropout(**changes):
    options = {
        "broadcast_dropout": False,
        "dropout_rng": jax.random.key(3),
        "dropout_rate": RATE,
    }
    return options | changes


def weights_of(fn, t=64, n=4, batch=(3,), **options):
    """The weights after dropout: equal logits, and one-hot values."""
    query = jnp.zeros((*batch, t, n, t))
    value = jnp.broadcast_to(jnp.eye(t)[:, None], (*batch, t, n, t))
    return np.asarray(fn(query, query, value, **options)) * t  # [*batch, T, N, S]


def test_dropout_keeps_and_scales_weights_independently():
    weights = weights_of(dot_product_attention, **dropout())
    kept = weights != 0
    np.testing.assert_allclose(weights[kept], 1 / (1 - RATE), rtol=1e-5)
    # 49152 weights: the standard deviation of the mean is 0.2%.
    assert abs(kept.mean() - (1 - RATE)) < 5 * 0.002
    patterns = kept.swapaxes(1, 2).reshape(12, -1).astype(float)
    correlation = np.corrcoef(patterns) - np.eye(12)
    # 4096 weights a head: the standard deviation of a correlation is 1 / 64.
    assert np.abs(correlation).max() < 5 / 64


def test_dropout_repeats_with_one_key_and_varies_with_another():
    first, again, other = (
        weights_of(dot_product_attention, **dropout(dropout_rng=jax.random.key(seed)))
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert ((first == 0) != (other == 0)).mean() > 0.2


def test_dropout_typed_and_raw_keys_draw_the_same():
    raw = jax.random.key_data(jax.random.key(3))
    np.testing.assert_array_equal(
        weights_of(dot_product_attention, **dropout(dropout_rng=raw)),
        weights_of(dot_product_attention, **dropout()),
    )


def test_dropout_gradient_is_that_of_the_weights_kept(qkv, assert_close, runs_tokumx):
    query, key, value = qkv(d=33)
    ours = functools.partial(dot_product_attention, **dropout())
    assert runs_tokumx(ours, query, key, value)
    # One-hot values read back which weights are kept.
    one_hot = jnp.broadcast_to(jnp.eye(33)[:, None], value.shape)
    kept = (ours(query, key, one_hot) != 0).swapaxes(-2, -3)  # [2, 4, 33, 33]

    def theirs(query, key, value):
        weights = linen.dot_product_attention_weights(query, key) * kept / (1 - RATE)
        return jnp.einsum("bnts,bsnd->btnd", weights, value)

    def loss(fn, *args):
        return (fn(*args) * jnp.arange(33)).sum()

    assert_close(
        *(
            jax.grad(functools.partial(loss, fn), (0, 1, 2))(query, key, value)
            for fn in (ours, theirs)
        )
    )


def test_dropout_deterministic_drops_nothing(qkv, assert_close, runs_tokumx):
    args = qkv()
    options = dropout(deterministic=True, dropout_rng=None, broadcast_dropout=True)
    assert runs_tokumx(functools.partial(dot_product_attention, **options), *args)
    assert_close(
        dot_product_attention(*args, **options), nnx.dot_product_attention(*args)
    )


def test_dropout_broadcast_is_that_of_both_frameworks_to_the_bit(qkv, runs_tokumx):
    args = qkv()
    options = dropout(broadcast_dropout=True)
    ours = functools.partial(dot_product_attention, **options)
    assert not runs_tokumx(ours, *args)
    np.testing.assert_array_equal(
        ours(*args), nnx.dot_product_attention(*args, **options)
    )
    np.testing.assert_array_equal(
        ours(*args, force_fp32_for_softmax=False),
        linen.dot_product_attention(*args, **options),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "highest"},
        {"precision": jax.lax.Precision.HIGH},
        {"precision": ("default", "high")},
    ],
    ids=str,
)
def test_precision_that_is_not_default_runs_flax(options, qkv, runs_tokumx):
    args = qkv()
    ours = functools.partial(dot_product_attention, **options)
    assert not runs_tokumx(ours, *args)
    np.testing.assert_array_equal(
        ours(*args), nnx.dot_product_attention(*args, **options)
    )
    np.testing.assert_array_equal(
        ours(*args, force_fp32_for_softmax=False),
        linen.dot_product_attention(*args, **options),
    )


@pytest.mark.parametrize(
    "precision",
    [
        "default",
        jax.lax.Precision.DEFAULT,
        ("default", "default"),
        (jax.lax.Precision.DEFAULT, jax.lax.Precision.DEFAULT),
    ],
    ids=str,
)
def test_precision_default_runs_tokumx(precision, qkv, runs_tokumx):
    ours = functools.partial(dot_product_attention, precision=precision)
    assert runs_tokumx(ours, *qkv())


def test_precision_falls_back_with_mask_and_causal_of_both_frameworks(
    qkv, assert_close
):
    args = qkv()
    mask = jax.random.bernoulli(jax.random.key(1), 0.5, (2, 1, 1, 33))
    mask = mask.at[..., 0].set(True)
    expected = dot_product_attention(*args, mask=mask, is_causal=True)
    for options in ({}, {"force_fp32_for_softmax": False}):
        actual = dot_product_attention(
            *args, mask=mask, is_causal=True, precision="highest", **options
        )
        assert_close(actual, expected)


def test_custom_einsums_run_linen(qkv, runs_tokumx):
    seen = []

    def einsum(subscripts, *operands):
        seen.append(subscripts)
        return jnp.einsum(subscripts, *operands)

    args = qkv()
    out = dot_product_attention(
        *args,
        is_causal=True,
        qk_attn_weights_einsum=einsum,
        attn_weights_value_einsum=einsum,
    )
    assert seen == ["...qhd,...khd->...hqk", "...hqk,...khd->...qhd"]
    expected = linen.dot_product_attention(*args, mask=jnp.tri(33, dtype=bool))
    np.testing.assert_array_equal(out, expected)
    with_dot_general = functools.partial(
        dot_product_attention, einsum_dot_general=jax.lax.dot_general
    )
    assert not runs_tokumx(with_dot_general, *args)


def message_of(fn, *args, **options):
    with pytest.raises((ValueError, TypeError)) as caught:
        fn(*args, **options)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "options",
    [dropout(dropout_rng=None), dropout(dropout_rate=1.5)],
    ids=["no-rng", "rate-1.5"],
)
def test_dropout_errors_are_those_of_flax(options, qkv):
    args = qkv()
    try:
        nnx.dot_product_attention(*args, **options)
    except Exception:
        assert message_of(dot_product_attention, *args, **options) == message_of(
            nnx.dot_product_attention, *args, **options
        )
    else:  # Flax 0.12.8 checks no rate
        dot_product_attention(*args, **options)


def test_dropout_under_vmap_repeats_the_pattern_of_an_unbatched_key(qkv):
    args = qkv((3, 2), t=8, s=8)
    ours = functools.partial(dot_product_attention, **dropout())
    same = [jnp.broadcast_to(x[:1], x.shape) for x in args]
    out = jax.vmap(ours)(*same)
    np.testing.assert_allclose(out[1:], out[:1].repeat(2, 0), rtol=1e-6)
