"""The numerics rule, forward and gradients, over dtypes, sizes and inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.numerics import DISTRIBUTIONS, check, sample
from tokumx.ops.attention import xla_blocked, xla_decode

# No block divides the length, and the two passes differ.
BLOCKED = tokumx.Configs(
    xla_blocked.Config(block_q=64, block_kv=48, block_heads=2),
    xla_blocked.Config(block_q=48, block_kv=40, block_heads=1),
)
BLOCKED_NARROW = xla_blocked.Config(
    block_q=64, block_kv=32, block_heads=2, dot_dtype="input"
)
DTYPES = ["float32", "bfloat16", "float16"]


def operands(distribution, dtype, t=130, s=130, n=4, k=2, h=32, d=32, batch=2):
    shapes = (batch, t, n, h), (batch, s, k, h), (batch, s, k, d)
    return [sample(distribution, i, x, dtype) for i, x in enumerate(shapes)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_blocked_is_as_right_as_plain_on_every_distribution(distribution, dtype):
    check(
        tokumx.dot_product_attention,
        *operands(distribution, dtype),
        is_causal=True,
        implementation="xla_blocked",
        config=BLOCKED,
        return_residual=True,
    ).raise_if_wrong()


def test_blocked_logits_in_the_ten_thousands():
    """The weights must come from the row's maximum, not from the log-sum-exp."""
    check(
        tokumx.dot_product_attention,
        *(3 * x for x in operands("huge", "float32")),
        is_causal=True,
        implementation="xla_blocked",
        config=BLOCKED,
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("distribution", ["normal", "heavy_tailed", "activation"])
def test_blocked_products_in_the_input_dtype_keep_the_budget(distribution, dtype):
    check(
        tokumx.dot_product_attention,
        *operands(distribution, dtype),
        is_causal=True,
        implementation="xla_blocked",
        config=tokumx.Configs(BLOCKED_NARROW, BLOCKED.backward),
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_decode_is_as_right_as_plain_on_every_distribution(distribution, dtype):
    check(
        tokumx.dot_product_attention,
        *operands(distribution, dtype, t=16),
        is_causal=True,
        query_offset=100,
        implementation="xla_decode",
        config=xla_decode.Config(block_kv=64),
        return_residual=True,
    ).raise_if_wrong()


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 65, 257])
@pytest.mark.parametrize("implementation", ["xla_blocked", None])
def test_attention_odd_lengths(length, implementation):
    check(
        tokumx.dot_product_attention,
        *operands("normal", "float32", t=length, s=length),
        is_causal=True,
        local_window_size=(15, None),
        implementation=implementation,
        config=BLOCKED if implementation else None,
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", ["normal", "activation", "huge"])
def test_whole_rows_of_an_unmasked_call_are_as_right_as_plain(distribution, dtype):
    """More queries than one block holds, and no gradient: another kernel."""
    check(
        tokumx.dot_product_attention,
        *operands(distribution, dtype, t=700),
        implementation="xla_blocked",
        return_residual=True,
        gradients=False,
    ).raise_if_wrong()


@pytest.mark.parametrize(("h", "d"), [(32, 64), (64, 32), (80, 80), (192, 128)])
def test_attention_head_and_value_dims_differ(h, d):
    check(
        tokumx.dot_product_attention,
        *operands("activation", "float32", h=h, d=d),
        implementation="xla_blocked",
        config=BLOCKED,
    ).raise_if_wrong()


def test_attention_head_dim_256_with_activation_like_inputs():
    check(
        tokumx.dot_product_attention,
        *operands("activation", "bfloat16", h=256, d=256, batch=1),
        is_causal=True,
        implementation="xla_blocked",
        config=BLOCKED,
    ).raise_if_wrong()


SEGMENTS = np.sort(np.random.default_rng(1).integers(0, 4, (2, 130)), 1).astype("i4")
FEATURES = {
    "window": {"local_window_size": (20, 10)},
    "segments": {"query_segment_ids": SEGMENTS, "is_causal": True},
    "lengths": {
        "query_seq_lengths": np.array([130, 77], np.int32),
        "key_value_seq_lengths": np.array([0, 99], np.int32),
    },
    "soft_cap": {"logits_soft_cap": 2.0, "is_causal": True},
    "sinks": {"sinks": np.array([3.0, -2.0, 0.0, 9.0], np.float32)},
    "bias": {"bias": sample("normal", 9, (1, 4, 130, 130))},
    "bias_by_key": {"bias": sample("normal", 9, (2, 1, 1, 130))},
    "bias_by_query": {"bias": sample("normal", 9, (1, 1, 130, 1))},
    "mask": {"mask": np.random.default_rng(2).random((2, 4, 130, 130)) < 0.1},
    "mask_by_head": {"mask": np.array([1, 0, 1, 1], bool).reshape(1, 4, 1, 1)},
    "dropout": {"dropout_rate": 0.3, "dropout_key": jax.random.key(0)},
    "everything": {
        "is_causal": True,
        "query_offset": np.array([0, 20], np.int32),
        "query_segment_ids": SEGMENTS,
        "logits_soft_cap": 5.0,
        "sinks": np.array([3.0, -2.0, 0.0, 9.0], np.float32),
        "bias": sample("normal", 9, (1, 4, 130, 130)),
        "mask": np.random.default_rng(2).random((2, 1, 130, 130)) < 0.8,
        "dropout_rate": 0.1,
        "dropout_key": jax.random.key(0),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("feature", FEATURES)
def test_blocked_gradients_with_each_feature(feature, dtype):
    """Gradients of query, key, value, bias and sinks."""
    check(
        tokumx.dot_product_attention,
        *operands("normal", dtype),
        **FEATURES[feature],
        implementation="xla_blocked",
        config=BLOCKED,
        return_residual=True,
    ).raise_if_wrong()


@pytest.mark.parametrize("implementation", ["xla", "xla_blocked", "xla_decode"])
def test_attention_fully_masked_rows_are_zero_with_zero_gradients(implementation):
    q, k, v = operands("normal", "float32", t=12, s=12)
    lengths = jnp.array([0, 5], jnp.int32)

    def loss(q, k, v):
        out, lse = tokumx.dot_product_attention(
            q,
            k,
            v,
            key_value_seq_lengths=lengths,
            implementation=implementation,
            return_residual=True,
        )
        return (out * jnp.cos(out + 1)).sum(), (out, lse)

    (_, (out, lse)), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    assert not out[0].any()
    assert (lse[0] == -jnp.inf).all()
    for g in grads:
        assert not g[0].any()
        assert jnp.isfinite(g).all()
        assert g[1].any()


@pytest.mark.parametrize("implementation", ["xla", "xla_blocked"])
def test_attention_infinite_bias_masks_like_the_mask(implementation):
    q, k, v = operands("normal", "float32", t=40, s=40)
    visible = np.tril(np.ones((40, 40), bool))[None, None]
    by_bias = tokumx.dot_product_attention(
        q,
        k,
        v,
        jnp.where(visible, 0.0, -jnp.inf),
        implementation=implementation,
    )
    by_rule = tokumx.dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(by_bias, by_rule, rtol=0, atol=1e-6)


def test_attention_dropout_keeps_the_mean_and_the_rate():
    rate, draws = 0.25, 200
    q = jnp.zeros((1, 64, 1, 8))
    v = jnp.ones((1, 64, 1, 8))
    keys = jax.random.split(jax.random.key(0), draws)
    outs = jax.vmap(
        lambda key: tokumx.dot_product_attention(
            q, q, v, dropout_rate=rate, dropout_key=key
        )
    )(keys)
    # Each output is a mean of 64 kept-or-dropped ones over 1 - rate.
    sigma = (rate / (1 - rate) / 64 / (64 * draws)) ** 0.5
    assert abs(float(outs.mean()) - 1) < 4 * sigma


@pytest.mark.parametrize("key", [jax.random.key(3), jax.random.PRNGKey(3)])
def test_attention_dropout_is_the_same_in_every_implementation(key):
    q, k, v = operands("normal", "float32", t=16)
    outs = [
        tokumx.dot_product_attention(
            q, k, v, dropout_rate=0.5, dropout_key=key, implementation=name
        )
        for name in ("xla", "xla_blocked", "xla_decode")
    ]
    np.testing.assert_allclose(outs[0], outs[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(outs[0], outs[2], rtol=0, atol=1e-6)


def test_attention_agrees_with_jax_nn_on_its_own_arguments():
    """Same names, same meaning: GQA, bias, mask, window, lengths, scale."""
    q, k, v = operands("normal", "float32")
    kwargs = {
        "bias": sample("normal", 9, (2, 4, 130, 130)),
        "mask": jnp.asarray(np.random.default_rng(2).random((2, 1, 130, 130)) < 0.9),
        "scale": 0.3,
        "is_causal": True,
        "key_value_seq_lengths": jnp.array([130, 60], jnp.int32),
        "local_window_size": (60, 3),
        "return_residual": True,
    }
    theirs = jax.nn.dot_product_attention(q, k, v, **kwargs)
    ours = tokumx.dot_product_attention(
        q, k, v, **kwargs, implementation="xla_blocked", config=BLOCKED
    )
    # They give a fully masked row the mean of the values, tokumx zeros.
    alive = np.isfinite(ours[1])
    np.testing.assert_allclose(
        np.asarray(ours[0])[alive], np.asarray(theirs[0])[alive], rtol=0, atol=2e-6
    )
    np.testing.assert_allclose(
        np.asarray(ours[1])[alive], np.asarray(theirs[1])[alive], rtol=2e-6, atol=2e-6
    )
