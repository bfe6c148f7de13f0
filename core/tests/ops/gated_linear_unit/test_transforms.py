"""Under every jax transformation, on one device and on eight."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx

IMPLEMENTATIONS = ["xla_recompute", "xla"]


def loss(call, implementation, operands):
    out = call(**operands, implementation=implementation)
    return jnp.sum(out * jnp.sin(out))


def gradient(call, implementation):
    return jax.grad(functools.partial(loss, call, implementation))


def assert_close(actual, expected, eps=5e-6):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        np.testing.assert_allclose(a, e, rtol=0, atol=eps * max(1, np.abs(e).max()))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_glu_under_jit_equals_eager(implementation, glu, call):
    operands, grad = glu().operands(), gradient(call, implementation)
    assert_close(jax.jit(grad)(operands), grad(operands))


@pytest.mark.parametrize("lead", [(), (1,), (5,)])
@pytest.mark.parametrize("batched", [{"x"}, {"weights"}, {"x", "down_weight"}])
def test_glu_under_vmap_equals_a_loop(batched, lead, glu, call):
    """In bf16, where a single row is padded, but not a batch of single rows."""
    operands = glu(lead, is_fused=True, has_bias=False).operands("normal", "bfloat16")
    axes = {n: 0 if n in batched else None for n in operands}
    stacked = {
        n: jnp.stack([x, 0.5 * x, -x]) if n in batched else x
        for n, x in operands.items()
    }
    grad = gradient(call, "xla_recompute")
    together = jax.jit(jax.vmap(grad, in_axes=(axes,)))(stacked)
    one_by_one = jax.jit(grad)
    for i in range(3):
        one = {n: x[i] if n in batched else x for n, x in stacked.items()}
        assert_close({n: g[i] for n, g in together.items()}, one_by_one(one), 0.02)


def test_glu_batch_of_single_rows_is_not_padded(glu, call):
    operands = glu((), d=8, f=16, o=8, has_bias=False).operands("normal", "bfloat16")
    weights = {n: w for n, w in operands.items() if n != "x"}
    rows = jnp.ones((64, 8), jnp.bfloat16)
    text = jax.jit(jax.vmap(lambda x: call(x=x, **weights))).lower(rows).as_text()
    assert "tensor<64x16xf32>" in text
    assert "x2x16xf32>" not in text
    alone = jax.jit(lambda x: call(x=x, **weights)).lower(rows[0]).as_text()
    assert "tensor<2x16xf32>" in alone


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint])
def test_glu_in_a_scan_of_layers(wrap, implementation, glu, call):
    operands = glu((2, 3), d=8, f=12, o=8).operands()
    weights = {n: w for n, w in operands.items() if n != "x"}
    layers = {n: jnp.stack([w, -w, 0.5 * w]) for n, w in weights.items()}

    def apply(x, w):
        return x + call(x=x, **w, implementation=implementation)

    def scanned(x, layers):
        step = wrap(lambda x, w: (apply(x, w), None))
        return lax.scan(step, x, layers)[0].sum()

    def unrolled(x, layers):
        for i in range(3):
            x = apply(x, {n: w[i] for n, w in layers.items()})
        return x.sum()

    grads = [jax.jit(jax.grad(f, (0, 1)))(operands["x"], layers)
             for f in (scanned, unrolled)]  # fmt: skip
    assert_close(*grads)


@pytest.mark.parametrize("has_down", [True, False])
def test_glu_remat_policy_can_keep_the_pre_activations(has_down, glu, call):
    operands = glu(has_down=has_down).operands()
    name = "tokumx_gated_linear_unit" + ("_down" if has_down else "")
    policy = jax.checkpoint_policies.save_only_these_names(name)

    def calls(policy):
        fn = jax.checkpoint(
            functools.partial(loss, call, "xla_recompute"), policy=policy
        )
        return [c.count for c in tokumx.explain(jax.grad(fn), operands).calls]

    assert calls(None) == [2]
    assert calls(policy) == [1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_glu_reference_has_forward_mode_and_second_order(implementation, glu, call):
    operands = glu().operands()
    x = operands.pop("x")
    fn = lambda x: call(x=x, **operands, implementation=implementation)  # noqa: E731
    if implementation == "xla":
        _, tangent = jax.jvp(fn, (x,), (x,))
        assert jnp.isfinite(tangent).all()
        assert jnp.isfinite(jax.hessian(lambda x: fn(x).sum())(x)).all()
    else:
        with pytest.raises(TypeError, match="forward-mode"):
            jax.jvp(fn, (x,), (x,))


def _specs(is_fused):
    """Megatron: columns of gate and up, rows of down; the batch over the rest."""
    columns = {"gate_weight": P(None, "model"), "up_weight": P(None, "model")}
    return {
        "x": P("data"),
        "gate_bias": P("model"),
        "up_bias": P("model"),
        "down_weight": P("model"),
        "down_bias": P(),
    } | ({"weights": P(None, None, "model")} if is_fused else columns)


def _placed(mesh, operands, specs):
    return {
        n: jax.device_put(x, NamedSharding(mesh, specs[n])) for n, x in operands.items()
    }


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("has_down", [True, False])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_glu_tensor_parallel(implementation, has_down, is_fused, axis_type, glu, call):
    """2 x 4 devices: the result is whole, gradients are sharded as their operands."""
    operands = glu((4, 3), is_fused=is_fused, has_down=has_down).operands()
    expected = jax.jit(gradient(call, "xla"))(operands)
    specs = _specs(is_fused)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    with jax.set_mesh(mesh):
        placed = _placed(mesh, operands, specs)
        actual = jax.jit(gradient(call, implementation))(placed)
    assert_close(actual, expected)
    weight = "weights" if is_fused else "gate_weight"
    assert actual[weight].sharding.spec[-1] == "model"
    assert actual["x"].sharding.spec[0] == "data"


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("is_fused", [False, True])
def test_glu_tensor_parallel_sums_activations_and_gathers_nothing(
    is_fused, axis_type, glu, call
):
    operands = glu((4, 3), is_fused=is_fused).operands()
    mesh = jax.make_mesh((8,), ("model",), axis_types=(axis_type,))
    specs = _specs(is_fused) | {"x": P()}
    with jax.set_mesh(mesh):
        placed = _placed(mesh, operands, specs)
        forward = jax.jit(lambda ops: call(**ops)).lower(placed).compile().as_text()
        both = jax.jit(gradient(call, None)).lower(placed).compile().as_text()
    assert len(re.findall(r" all-reduce(?:-start)?\(", forward)) == 1
    for text in (forward, both):
        for other in ("all-gather", "all-to-all", "collective-permute"):
            assert f" {other}(" not in text


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("is_fused", [False, True])
def test_glu_in_shard_map_is_a_partial_sum(is_fused, implementation, glu, call):
    operands = glu((4, 3), is_fused=is_fused).operands()
    down_bias = operands.pop("down_bias")
    specs = _specs(is_fused)
    del specs["down_bias"]
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(specs,), out_specs=P("data"))
    def parallel(operands):
        return lax.psum(call(**operands, implementation=implementation), "model")

    def parallel_loss(operands):
        out = parallel(operands) + down_bias
        return jnp.sum(out * jnp.sin(out))

    wanted = gradient(call, "xla")({**operands, "down_bias": down_bias})
    del wanted["down_bias"]
    assert_close(jax.jit(jax.grad(parallel_loss))(operands), wanted)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_glu_f_that_does_not_divide_is_gathered(implementation, glu, call):
    operands = glu((4, 3), f=6, has_bias=False).operands()
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        placed = _placed(
            mesh, operands, dict.fromkeys(operands, P()) | {"x": P("data")}
        )
        actual = jax.jit(gradient(call, implementation))(placed)
    assert_close(actual, gradient(call, "xla")(operands))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_glu_exports_with_a_symbolic_batch(implementation, glu, call):
    operands = glu((2, 3), has_bias=False).operands("normal", "bfloat16")
    (rows,) = export.symbolic_shape("b")
    symbolic = {
        n: jax.ShapeDtypeStruct((rows, *x.shape[1:]) if n == "x" else x.shape, x.dtype)
        for n, x in operands.items()
    }
    fn = jax.jit(lambda ops: call(**ops, implementation=implementation))
    exported = export.deserialize(export.export(fn)(symbolic).serialize())
    assert_close(exported.call(operands), fn(operands), 0.02)


def test_glu_in_float64(glu, call):
    with jax.enable_x64(True):
        operands = {n: x.astype(jnp.float64) for n, x in glu().operands().items()}
        ours, plain = (gradient(call, i)(operands) for i in IMPLEMENTATIONS)
        assert ours["x"].dtype == jnp.float64
        assert_close(ours, plain, 1e-14)
