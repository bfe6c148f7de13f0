"""tokumx inside nnx.MultiHeadAttention and under nnx's transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tokumx_flax import dot_product_attention, replace

FEATURES = 32


class Block(nnx.Module):
    """Without biases in attention: that of the keys has a gradient of 0."""

    def __init__(self, rngs, **options):
        options = {"decode": False, "use_bias": False} | options
        self.norm = nnx.LayerNorm(FEATURES, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, FEATURES, rngs=rngs, **options)
        self.mlp = nnx.Linear(FEATURES, FEATURES, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x), is_causal=True)
        return x + nnx.gelu(self.mlp(x))


class Model(nnx.Module):
    def __init__(self, rngs, **options):
        self.blocks = nnx.List([Block(rngs, **options) for _ in range(2)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (2, 21, FEATURES))


@pytest.fixture
def models():
    """Equal models: plain, and with tokumx."""

    def make(**options):
        pair = Model(nnx.Rngs(0), **options), Model(nnx.Rngs(0), **options)
        replace(pair[1])
        return pair

    return make


def loss(model, x):
    return (model(x) ** 2 * jnp.arange(FEATURES)).mean()


def both(fn, models, *args):
    return [fn(model, *args) for model in models]


def attention(tokumx, **options):
    if tokumx:
        options["attention_fn"] = dot_product_attention
    options = {"decode": False, "rngs": nnx.Rngs(0)} | options
    return nnx.MultiHeadAttention(4, FEATURES, **options)


def test_nnx_jit_and_gradients(models, x, assert_close, runs_tokumx):
    models = models()
    graph, state = nnx.split(models[1])
    assert runs_tokumx(lambda state, x: nnx.merge(graph, state)(x), state, x)
    assert_close(*both(nnx.jit(lambda m, x: m(x)), models, x))
    assert_close(*both(nnx.jit(nnx.grad(loss)), models, x))


def test_nnx_jit_traces_anew_when_the_function_changes(models, x):
    model, _ = models()
    traces = []

    @nnx.jit
    def forward(model, x):
        traces.append(model.blocks[0].attention.attention_fn)
        return model(x)

    forward(model, x)
    with replace(model):
        forward(model, x)
        forward(model, x)
    forward(model, x)
    assert traces == [nnx.dot_product_attention, dot_product_attention]


def test_nnx_remat_gradients(models, x, assert_close):
    def rematted(model, x):
        return (nnx.remat(Model.__call__)(model, x) ** 2).mean()

    assert_close(*both(nnx.jit(nnx.grad(rematted)), models(), x))


def test_nnx_vmap_over_the_batch(models, x, assert_close):
    forward = nnx.vmap(lambda m, x: m(x[None])[0], in_axes=(None, 0))
    assert_close(*both(forward, models(), x))


def test_nnx_vmap_without_a_batch_dimension(models, x, assert_close):
    forward = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))
    assert_close(*both(forward, models(), x))


def test_nnx_scan_over_layers(x, assert_close):
    @nnx.vmap(in_axes=0)
    def stack(key):
        return Block(nnx.Rngs(key))

    @nnx.jit
    def forward(layers, x):
        step = nnx.scan(
            lambda block, x: block(x), in_axes=(0, nnx.Carry), out_axes=nnx.Carry
        )
        return step(layers, x)

    pair = [stack(jax.random.split(jax.random.key(1), 3)) for _ in range(2)]
    replace(pair[1])
    assert_close(*both(forward, pair, x))
    gradients = nnx.jit(nnx.grad(lambda layers, x: (forward(layers, x) ** 2).mean()))
    assert_close(*both(gradients, pair, x))


def test_nnx_split_merge_and_clone_keep_the_function(models, x, assert_close):
    plain, model = models()
    merged = nnx.merge(*nnx.split(model))
    for copy in (merged, nnx.clone(model)):
        assert copy.blocks[1].attention.attention_fn is dot_product_attention
        assert_close(copy(x), plain(x))


def test_nnx_state_is_the_same_both_ways(models, x, assert_close):
    plain, model = models()
    states = nnx.state(plain), nnx.state(model)
    paths = [[p for p, _ in nnx.to_flat_state(s)] for s in states]
    assert paths[0] == paths[1]
    other = Model(nnx.Rngs(7))
    nnx.update(model, nnx.state(other))
    assert_close(model(x), other(x))
    nnx.update(plain, nnx.state(model))
    assert_close(plain(x), other(x))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_nnx_module_with_any_batch_dimensions(batch, assert_close):
    x = jax.random.normal(jax.random.key(0), (*batch, 9, FEATURES))
    mask = jnp.tri(9, dtype=bool)
    mask = jnp.broadcast_to(mask, (*batch, 1, 9, 9))
    assert_close(*(attention(tokumx)(x, mask=mask) for tokumx in (True, False)))


@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_heads": 2},
        {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16},
        {"normalize_qk": True},
    ],
    ids=["grouped", "bf16", "normalize_qk"],
)
def test_nnx_module_options(options, x, assert_close):
    ours, theirs = (attention(tokumx, **options)(x) for tokumx in (True, False))
    # bf16: a unit in the last place of the largest output.
    assert_close(ours, theirs, 2**-7 if "dtype" in options else 1e-5)


def test_nnx_cross_attention_with_padding_mask(x, assert_close):
    context = jax.random.normal(jax.random.key(5), (2, 13, FEATURES))
    keep = jnp.arange(13) < jnp.array([[13], [4]])
    mask = nnx.make_attention_mask(jnp.ones((2, 21)), keep)
    assert mask.dtype == jnp.float32
    assert_close(
        *(attention(tokumx)(x, context, mask=mask) for tokumx in (True, False))
    )


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_nnx_decode_sees_the_cache_at_every_step(kv_heads, x, assert_close):
    whole = attention(False, num_kv_heads=kv_heads)(x, is_causal=True)
    module = attention(True, num_kv_heads=kv_heads, decode=True)
    module.init_cache(x.shape)
    # Flax 0.12.8 passes is_causal on while decoding.
    step = nnx.jit(lambda module, token: module(token, is_causal=True))
    steps = [step(module, x[:, i : i + 1]) for i in range(x.shape[1])]
    assert module.cache_index[...] == x.shape[1]
    assert_close(jnp.concatenate(steps, axis=1), whole)


def test_nnx_decode_matches_flax_with_a_mask(x, assert_close):
    pair = [attention(tokumx, decode=True) for tokumx in (True, False)]
    mask = (jnp.arange(21) != 2)[None, None, None].repeat(2, 0)
    for module in pair:
        module.init_cache(x.shape)
    for i in range(6):
        token = x[:, i : i + 1]
        assert_close(*(module(token, mask=mask) for module in pair))


def test_nnx_sow_weights_runs_flax(x):
    pair = [attention(tokumx) for tokumx in (True, False)]
    results = [
        nnx.capture(module, nnx.Intermediate)(x, is_causal=True, sow_weights=True)
        for module in pair
    ]
    assert jax.tree.leaves(results[0][1])[0].shape == (2, 4, 21, 21)
    for ours, theirs in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def dropout_module(tokumx, broadcast):
    return attention(
        tokumx,
        rngs=nnx.Rngs(0, dropout=1),
        dropout_rate=0.5,
        broadcast_dropout=broadcast,
        deterministic=False,
    )


def test_nnx_broadcast_dropout_is_flax_to_the_bit(x):
    outs = [dropout_module(tokumx, True)(x) for tokumx in (True, False)]
    np.testing.assert_array_equal(*outs)


def test_nnx_dropout_averages_to_no_dropout(x, runs_tokumx):
    module = dropout_module(True, False)
    mean_of = nnx.jit(lambda m, x: jnp.stack([m(x) for _ in range(8)]))
    outs = np.concatenate([mean_of(module, x) for _ in range(25)])
    assert (outs[0] != outs[1]).any()
    exact = module(x, deterministic=True)
    # Five standard deviations of the mean of 200 draws, at every output.
    assert (np.abs(outs.mean(0) - exact) < 5 * outs.std(0) / 200**0.5 + 1e-6).all()
    graph, state = nnx.split(module)
    assert runs_tokumx(lambda state, x: nnx.merge(graph, state)(x), state, x)


def test_nnx_dropout_without_rngs_raises_as_flax(x):
    module = dropout_module(True, False)
    module.rngs = None
    with pytest.raises(ValueError) as caught:
        module(x)
    assert str(caught.value) == (
        "'rngs' must be provided to __call__ method if MultiHeadAttention instance "
        "is defined with keep_rngs=False."
    )
