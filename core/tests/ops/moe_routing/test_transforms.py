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

GROUPED = {"score": "sigmoid", "num_groups": 4, "top_groups": 2, "renormalize": True}


@pytest.fixture(params=["xla", "xla_rounds"])
def implementation(request):
    return request.param


@pytest.fixture(params=["xla", "xla_gather"])
def mover(request):
    return request.param


def random_array(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def routing_loss(logits, implementation, **options):
    found = tokumx.top_k_routing(logits, 3, **options, implementation=implementation)
    return jnp.sin(3 * found.weights).sum() + jnp.cos(3 * found.probs).sum(), found


def moved(x, experts, weights, mover):
    """There and back, with something done to the rows between."""
    found = tokumx.moe_permute(x, experts, 5, implementation=mover)
    place = jnp.arange(found.rows.shape[0])[:, None] % 3
    return tokumx.moe_unpermute(
        found.rows * place, found.permutation, weights, implementation=mover
    )


def moving_loss(x, experts, weights, mover):
    return jnp.sin(moved(x, experts, weights, mover)).sum()


def test_top_k_routing_under_vmap_scan_and_remat(implementation, assert_close):
    logits = random_array(0, 3, 6, 16)

    def layers(logits, wrap):
        @wrap
        def layer(x, _):
            found = tokumx.top_k_routing(x, 3, **GROUPED, implementation=implementation)
            return x + found.probs, found.weights.sum()

        x, sums = jax.lax.scan(layer, logits, None, 3)
        return (x**2).sum() + sums.sum()

    plain = jax.jit(jax.grad(lambda x: layers(x, lambda f: f)))
    together = jax.jit(jax.vmap(jax.grad(lambda x: layers(x, jax.checkpoint))))
    assert_close(together(logits), jnp.stack([plain(x) for x in logits]))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_top_k_routing_tokens_are_split_without_communication(
    axis_type, implementation, assert_close
):
    logits, bias = random_array(0, 4, 8, 16), random_array(1, 16)

    def loss(logits, bias):
        return routing_loss(logits, implementation, **GROUPED, correction_bias=bias)

    grad = jax.grad(loss, has_aux=True)
    expected = jax.jit(grad)(logits, bias)
    mesh = jax.make_mesh((2, 4), ("data", "seq"), axis_types=(axis_type,) * 2)
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, s))
            for x, s in ((logits, P("data", "seq")), (bias, P()))
        ]
        compiled = jax.jit(grad).lower(*placed).compile()
        gradient, found = compiled(*placed)
    assert_close(gradient, expected[0])
    np.testing.assert_array_equal(found.experts, expected[1].experts)
    assert found.weights.sharding.spec[:2] == ("data", "seq")
    if implementation == "xla_rounds" or axis_type == AxisType.Explicit:
        text = compiled.as_text()
        assert not re.search(r"\ball-(gather|to-all)|collective-permute", text)


@pytest.mark.parametrize("in_axes", [(0, 0, 0), (0, None, None), (None, 0, None)])
def test_moe_permute_and_unpermute_under_vmap_equal_a_loop(
    in_axes, mover, assert_close
):
    rng = np.random.default_rng(0)
    full = (
        random_array(0, 3, 6, 4),
        rng.integers(0, 5, (3, 6, 2), np.int32),
        random_array(1, 3, 6, 2),
    )
    operands = tuple(x if a == 0 else x[0] for x, a in zip(full, in_axes, strict=True))
    grad = jax.grad(functools.partial(moving_loss, mover=mover), (0, 2))
    found = jax.jit(jax.vmap(grad, in_axes))(*operands)
    for i in range(3):
        one = (x[i] if a == 0 else x for x, a in zip(operands, in_axes, strict=True))
        for a, b in zip(found, jax.jit(grad)(*one), strict=True):
            assert_close(a[i], b)


SPECS = {
    "tokens": (P("x"), P("x"), P("x")),
    "width": (P(None, "x"), P(), P()),
}


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("case", SPECS)
def test_moe_permute_and_unpermute_of_sharded_arrays(
    case, axis_type, mover, assert_close
):
    operands = (
        random_array(0, 16, 8),
        np.random.default_rng(0).integers(0, 5, (16, 2), np.int32),
        random_array(1, 16, 2),
    )
    grad = jax.value_and_grad(functools.partial(moving_loss, mover=mover), (0, 2))
    expected = jax.jit(grad)(*operands)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, s))
            for x, s in zip(operands, SPECS[case], strict=True)
        ]
        found = jax.jit(grad)(*placed)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(a, b)


def test_losses_inside_shard_map_are_of_all_tokens(assert_close):
    logits = random_array(0, 16, 8)
    keep = np.arange(16) % 5 > 0

    def losses(logits, keep, axis_name=None):
        found = tokumx.top_k_routing(logits, 2)
        how = {"token_mask": keep, "axis_name": axis_name}
        return tokumx.load_balance_loss(
            found.probs, found.experts, **how
        ) + tokumx.router_z_loss(logits, **how)

    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = jax.shard_map(
        functools.partial(losses, axis_name="x"),
        mesh=mesh,
        in_specs=(P("x"), P("x")),
        out_specs=P(),
    )
    found = jax.jit(jax.value_and_grad(split))(logits, keep)
    expected = jax.jit(jax.value_and_grad(losses))(logits, keep)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)


def test_top_k_routing_exports_with_a_symbolic_batch(implementation, assert_close):
    run = functools.partial(tokumx.top_k_routing, k=3, implementation=implementation)
    (tokens,) = jax.export.symbolic_shape("tokens")
    logits = jax.ShapeDtypeStruct((tokens, 8), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: tuple(run(x))))(logits)
    again = jax.export.deserialize(exported.serialize())
    x = random_array(0, 5, 8)
    for a, b in zip(again.call(x), run(x), strict=True):
        assert_close(a, b)


def test_moe_permute_and_unpermute_export(mover, assert_close):
    operands = (
        random_array(0, 6, 4),
        np.random.default_rng(0).integers(0, 5, (6, 2), np.int32),
        random_array(1, 6, 2),
    )
    run = jax.jit(functools.partial(moved, mover=mover))
    exported = jax.export.export(run, platforms=["tpu", "cuda", "cpu"])(*operands)
    assert_close(exported.call(*operands), run(*operands))


@pytest.mark.parametrize(("tokens", "taken"), [(16, "xla"), (2048, "xla_rounds")])
def test_top_k_routing_explains_its_choice(tokens, taken):
    logits = jax.ShapeDtypeStruct((tokens, 128), jnp.float32)
    (call,) = tokumx.explain(tokumx.top_k_routing, logits, k=8).calls
    assert call.decision.implementation == taken


def test_moe_permute_and_unpermute_hold_nothing_of_tokens_times_experts():
    t, k, e, d = 2048, 2, 256, 64
    shapes = (
        jax.ShapeDtypeStruct((t, d), jnp.float32),
        jax.ShapeDtypeStruct((t, k), jnp.int32),
        jax.ShapeDtypeStruct((t, k), jnp.float32),
    )

    def step(x, experts, weights):
        found = tokumx.moe_permute(x, experts, e)
        return tokumx.moe_unpermute(found.rows, found.permutation, weights).sum()

    compiled = jax.jit(jax.grad(step, (0, 2))).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * t * k * d * 4
