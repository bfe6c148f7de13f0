"""Under every jax transformation, on one device and on eight."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx

OPTIONS = {"label_smoothing": 0.1, "z_loss": 1e-2, "logits_soft_cap": 4.0}
B, T, D, V = 4, 10, 6, 208


def loss(x, weight, bias, labels, **options):
    return tokumx.linear_softmax_cross_entropy(
        x, weight, labels, bias=bias, **{**OPTIONS, **options}
    )


def step_of(**options):
    return jax.value_and_grad(functools.partial(loss, **options), (0, 1, 2))


@pytest.fixture
def arguments(operands):
    """x, weight, bias, labels."""
    x, weight, labels, bias = operands((B, T), D, V)
    return x, weight, bias.at[5].set(-jnp.inf), np.where(labels == 5, 6, labels)


@pytest.mark.parametrize(
    "in_axes",
    [(0, None, None, 0), (None, 0, None, None), (0, 0, 0, 0), (None, None, 0, 0)],
)
def test_cross_entropy_under_vmap_equals_a_loop(in_axes, how, operands, assert_close):
    full = [operands((B, T), D, V, seed) for seed in range(3)]
    stacked = [np.stack([np.asarray(f[i]) for f in full]) for i in (0, 1, 3, 2)]
    chosen = [x if a == 0 else x[0] for x, a in zip(stacked, in_axes, strict=True)]
    step = step_of(**how)
    together = jax.jit(jax.vmap(step, in_axes))(*chosen)
    alone = jax.jit(step)
    for i in range(3):
        one = (x[i] if a == 0 else x for x, a in zip(chosen, in_axes, strict=True))
        assert_close(jax.tree.map(lambda g: g[i], together), alone(*one))  # noqa: B023


def test_cross_entropy_of_any_number_of_leading_axes(how, arguments, assert_close):
    x, weight, bias, labels = arguments
    step = jax.jit(step_of(**how))
    expected, (dx, *others) = step(*arguments)
    for leading in ((B * T,), (2, 2, T), (2, 2, 1, T)):
        shaped = x.reshape(*leading, D), weight, bias, labels.reshape(leading)
        found, (dx_found, *others_found) = step(*shaped)
        assert_close((found, others_found), (expected, others))
        assert_close(dx_found.reshape(dx.shape), dx)
    one = tokumx.linear_softmax_cross_entropy(x[0, 0], weight, labels[0, 0], **how)
    assert one.shape == ()


def test_cross_entropy_under_scan_and_remat(how, arguments, assert_close):
    """Gradients accumulated over micro-batches, the forward run again."""
    x, weight, bias, labels = arguments

    def total(weight, wrap):
        def micro_batch(sum, batch):
            return sum + wrap(loss)(batch[0], weight, bias, batch[1], **how), None

        return jax.lax.scan(micro_batch, 0.0, (x, labels))[0]

    wrap = functools.partial(jax.checkpoint, static_argnums=())
    remat = lambda f: lambda *a, **k: wrap(functools.partial(f, **k))(*a)  # noqa: E731
    found = jax.jit(jax.grad(functools.partial(total, wrap=remat)))(weight)
    one = jax.jit(jax.grad(functools.partial(loss, **how), 1))
    expected = sum(one(x[i], weight, bias, labels[i]) for i in range(B))
    assert_close(found, expected)


def placed(mesh, arguments, specs):
    return [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip(arguments, specs, strict=True)
    ]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("layout", ["batch", "batch and sequence", "flat"])
def test_cross_entropy_of_sharded_tokens_moves_no_logits(
    layout, axis_type, how, operands, assert_close
):
    shape, tokens = {
        "batch": ((8, 6), P(("data", "seq"))),
        "batch and sequence": ((4, 8), P("data", "seq")),
        "flat": ((48,), P(("data", "seq"))),
    }[layout]
    x, weight, labels, bias = operands(shape, D, V)
    step = step_of(**how)
    expected = jax.jit(step)(x, weight, bias, labels)
    mesh = jax.make_mesh((2, 4), ("data", "seq"), axis_types=(axis_type,) * 2)
    with jax.set_mesh(mesh):
        operands_ = placed(mesh, (x, weight, bias, labels), (tokens, P(), P(), tokens))
        compiled = jax.jit(step).lower(*operands_).compile()
        found = compiled(*operands_)
    assert_close(found, expected)
    assert tuple(found[1][0].sharding.spec)[: len(tokens)] == tuple(tokens)
    text = compiled.as_text()
    assert not re.search(r"\ball-(gather|to-all)|collective-permute", text)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("weight_layout", ["dv", "vd"])
def test_cross_entropy_of_a_split_vocabulary(
    weight_layout, check_vma, reduction, how, operands, assert_close
):
    """Losses and gradients equal those of the whole weight; one device has
    nothing but removed words."""
    x, weight, labels, bias = operands(16, D, V)
    bias = bias.at[: V // 4].set(-jnp.inf).at[V // 2].set(-jnp.inf)
    labels = np.where((labels >= 0) & np.isneginf(bias)[labels], V - 1, labels)
    factor = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    options = {"reduction": reduction, "temperature": 0.7, **how}
    words, vector = P(None, "model"), P("model")
    if weight_layout == "vd":
        weight, words = weight.T, P("model")
    options["weight_layout"] = weight_layout
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    split = jax.shard_map(
        functools.partial(loss, **options, vocab_axis_name="model"),
        mesh=mesh,
        in_specs=(P(), words, vector, P()),
        out_specs=P(),
        check_vma=check_vma,
    )

    def total(fn):
        def run(*arguments):
            return (fn(*arguments) * factor).sum()

        return jax.jit(jax.value_and_grad(run, (0, 1, 2)))

    arguments = (x, weight, bias, labels)
    expected = total(functools.partial(loss, **options))(*arguments)
    assert_close(total(split)(*arguments), expected)


def test_cross_entropy_gradients_inside_shard_map_are_summed_once(
    how, operands, assert_close
):
    """Tokens over one axis, words over the other; jax.grad inside."""
    x, weight, labels, bias = operands(16, D, V)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    inside = step_of(reduction="sum", vocab_axis_name="model", **how)

    def run(x, weight, bias, labels):
        value, gradients = inside(x, weight, bias, labels)
        return jax.lax.psum(value, "data"), gradients

    specs = (P("data"), P(None, "model"), P("model"))
    split = jax.shard_map(
        run, mesh=mesh, in_specs=(*specs, P("data")), out_specs=(P(), specs)
    )
    found = jax.jit(split)(x, weight, bias, labels)
    expected = jax.jit(step_of(reduction="sum", **how))(x, weight, bias, labels)
    assert_close(found, expected)


def test_log_probs_of_a_split_vocabulary(how, operands, assert_close):
    x, weight, labels, _ = operands(16, D, V)
    run = functools.partial(tokumx.linear_token_log_probs, temperature=0.7, **how)
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    split = jax.shard_map(
        functools.partial(run, vocab_axis_name="model"),
        mesh=mesh,
        in_specs=(P(), P(None, "model"), P()),
        out_specs=P(),
    )
    assert_close(jax.jit(split)(x, weight, labels), run(x, weight, labels))


def test_cross_entropy_split_labels_are_checked_against_all_words(operands):
    x, weight, labels, _ = operands(16, D, 16)
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))

    def run(x, weight):
        return tokumx.linear_softmax_cross_entropy(
            x, weight, np.where(labels < 0, 16, labels), vocab_axis_name="model"
        )

    split = jax.shard_map(
        run, mesh=mesh, in_specs=(P(), P(None, "model")), out_specs=P()
    )
    with pytest.raises(ValueError, match=re.escape("labels must be in [0, 16)")):
        split(x, weight)


def test_cross_entropy_exports(how, arguments, assert_close):
    run = jax.jit(step_of(**how))
    exported = jax.export.export(run, platforms=["tpu", "cuda", "cpu"])(*arguments)
    again = jax.export.deserialize(exported.serialize())
    assert_close(again.call(*arguments), run(*arguments))


def test_cross_entropy_exports_with_a_symbolic_batch(operands, assert_close):
    x, weight, labels, _ = operands(5, D, V)
    (tokens,) = jax.export.symbolic_shape("tokens")
    run = jax.jit(tokumx.linear_softmax_cross_entropy)
    exported = jax.export.export(run)(
        jax.ShapeDtypeStruct((tokens, D), jnp.float32),
        weight,
        jax.ShapeDtypeStruct((tokens,), jnp.int32),
    )
    assert_close(exported.call(x, weight, labels), run(x, weight, labels))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weight_layout", ["dv", "vd"])
def test_cross_entropy_blocked_never_holds_the_logits(reduction, weight_layout):
    """Nor a copy of the weight, beside its gradient."""
    tokens, d, v = 4096, 64, 32768
    x = jax.ShapeDtypeStruct((tokens, d), jnp.float32)
    weight = jax.ShapeDtypeStruct((d, v) if weight_layout == "dv" else (v, d), x.dtype)
    labels = jax.ShapeDtypeStruct((tokens,), jnp.int32)

    def total(x, weight, labels):
        return tokumx.linear_softmax_cross_entropy(
            x, weight, labels, reduction=reduction, weight_layout=weight_layout
        ).sum()

    def temporary(fn):
        compiled = jax.jit(fn).lower(x, weight, labels).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(total) < tokens * v * 4 / 20
    assert temporary(jax.grad(total, (0, 1))) < tokens * v * 4 / 20


@pytest.mark.parametrize(
    ("tokens", "width", "words", "taken"),
    [
        (64, 512, 32768, "xla"),
        (1024, 512, 32768, "xla_blocked"),
        (1024, 2048, 32768, "xla"),
        (4096, 4096, 128256, "xla_blocked"),
    ],
)
def test_cross_entropy_explains_its_choice(tokens, width, words, taken):
    x = jax.ShapeDtypeStruct((tokens, width), jnp.float32)
    weight = jax.ShapeDtypeStruct((width, words), jnp.float32)
    labels = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    (call,) = tokumx.explain(
        tokumx.linear_softmax_cross_entropy, x, weight, labels
    ).calls
    assert call.decision.implementation == taken
