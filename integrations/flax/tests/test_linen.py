"""tokumx inside linen's attention modules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from tokumx_flax import dot_product_attention

MODULES = [linen.MultiHeadDotProductAttention, linen.MultiHeadAttention]


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (2, 21, 32))


def pair(module=linen.MultiHeadDotProductAttention, **options):
    """Equal modules: with tokumx, and plain."""
    return (
        module(4, attention_fn=dot_product_attention, **options),
        module(4, **options),
    )


def parameters(module, x, **options):
    return jax.jit(functools.partial(module.init, **options))(jax.random.key(1), x)


@pytest.mark.parametrize("kind", MODULES)
def test_linen_outputs_and_gradients_with_a_mask(kind, x, assert_close, runs_tokumx):
    # A bias of the keys would have a gradient of 0.
    modules = pair(kind, use_bias=False)
    variables = parameters(modules[1], x)
    mask = linen.make_causal_mask(jnp.ones((2, 21)))

    def loss(module, variables, x):
        out = module.apply(variables, x, mask=mask)
        return (out**2 * jnp.arange(32)).mean(), out

    losses = [functools.partial(loss, module) for module in modules]
    assert runs_tokumx(losses[0], variables, x)
    assert not runs_tokumx(losses[1], variables, x)
    assert_close(
        *(
            jax.jit(jax.grad(loss, (0, 1), has_aux=True))(variables, x)
            for loss in losses
        )
    )
    unmasked = modules[0].apply(variables, x)
    assert np.abs(unmasked - losses[0](variables, x)[1]).max() > 1e-2


def test_linen_partial_with_an_implementation(x, assert_close, runs_tokumx):
    fn = functools.partial(dot_product_attention, implementation="xla_blocked")
    module = linen.MultiHeadAttention(4, attention_fn=fn)
    variables = parameters(module, x)
    mask = linen.make_causal_mask(jnp.ones((2, 21)))
    assert_close(
        module.apply(variables, x, mask=mask),
        linen.MultiHeadAttention(4).apply(variables, x, mask=mask),
    )
    assert runs_tokumx(module.apply, variables, x)


@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_linen_any_batch_dimensions(batch, assert_close):
    x = jax.random.normal(jax.random.key(0), (*batch, 9, 32))
    mask = linen.make_causal_mask(jnp.ones((*batch, 9)))
    ours, theirs = pair()
    variables = parameters(theirs, x)
    assert_close(*(m.apply(variables, x, mask=mask) for m in (ours, theirs)))


def test_linen_decode_sees_the_cache_at_every_step(x, assert_close):
    module = linen.MultiHeadAttention(
        4, attention_fn=dot_product_attention, decode=True
    )
    variables = parameters(module, x)
    cache, weights = variables["cache"], {"params": variables["params"]}
    step = jax.jit(
        lambda cache, token: module.apply(
            {**weights, "cache": cache}, token, mutable=["cache"]
        )
    )
    steps = []
    for i in range(x.shape[1]):
        out, changed = step(cache, x[:, i : i + 1])
        cache = changed["cache"]
        steps.append(out)
    mask = linen.make_causal_mask(jnp.ones((2, 21)))
    whole = linen.MultiHeadAttention(4).apply(weights, x, mask=mask)
    assert_close(jnp.concatenate(steps, axis=1), whole)


def test_linen_sow_weights_runs_linen(x):
    ours, theirs = pair()
    variables = parameters(theirs, x)
    results = [
        m.apply(variables, x, sow_weights=True, mutable=["intermediates"])
        for m in (ours, theirs)
    ]
    assert jax.tree.leaves(results[0][1])[0].shape == (2, 4, 21, 21)
    jax.tree.map(np.testing.assert_array_equal, *results)


def dropped(module, variables, x, seed):
    return module.apply(
        variables, x, deterministic=False, rngs={"dropout": jax.random.key(seed)}
    )


def test_linen_broadcast_dropout_is_linen_to_the_bit(x):
    ours, theirs = pair(dropout_rate=0.5)
    variables = parameters(theirs, x, deterministic=True)
    np.testing.assert_array_equal(
        *(dropped(module, variables, x, 3) for module in (ours, theirs))
    )


def test_linen_dropout_repeats_and_averages_to_no_dropout(x, runs_tokumx):
    ours, _ = pair(dropout_rate=0.5, broadcast_dropout=False)
    variables = parameters(ours, x, deterministic=True)
    draw = jax.jit(functools.partial(dropped, ours))
    assert runs_tokumx(draw, variables, x, 0)
    outs = np.stack([draw(variables, x, seed) for seed in range(200)])
    np.testing.assert_array_equal(outs[3], draw(variables, x, 3))
    exact = ours.apply(variables, x, deterministic=True)
    # Five standard deviations of the mean of 200 draws, at every output.
    assert (np.abs(outs.mean(0) - exact) < 5 * outs.std(0) / 200**0.5 + 1e-6).all()


def test_linen_bf16_with_f32_softmax_keeps_the_dtype(x):
    options = {"dtype": jnp.bfloat16, "force_fp32_for_softmax": True}
    ours, theirs = pair(**options)
    variables = parameters(theirs, x)
    outs = [m.apply(variables, x) for m in (ours, theirs)]
    assert outs[0].dtype == outs[1].dtype == jnp.bfloat16
    exact = linen.MultiHeadAttention(4).apply(variables, x)
    error, allowed = (np.abs(o.astype(jnp.float32) - exact).max() for o in outs)
    # One rounding of the largest output: plain can be lucky.
    assert error <= allowed + np.abs(exact).max() * 2**-8


def test_linen_remat_and_scan_over_layers(x, assert_close):
    class Layer(linen.Module):
        fn: object

        @linen.compact
        def __call__(self, x, _):
            attention = linen.MultiHeadAttention(
                4, attention_fn=self.fn, use_bias=False
            )
            mask = linen.make_causal_mask(jnp.ones(x.shape[:2]))
            return x + attention(linen.LayerNorm()(x), mask=mask), None

    def model(fn):
        layers = linen.scan(
            linen.remat(Layer),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
        )
        return layers(fn)

    ours, theirs = model(dot_product_attention), model(linen.dot_product_attention)
    variables = jax.jit(theirs.init)(jax.random.key(1), x, None)

    def gradient(module):
        return jax.jit(jax.grad(lambda v: (module.apply(v, x, None)[0] ** 2).mean()))

    assert_close(gradient(ours)(variables), gradient(theirs)(variables))
