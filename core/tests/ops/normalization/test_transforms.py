"""Under every jax transformation, on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx
from tokumx.numerics import sample


@pytest.fixture(params=["cpu_native", "xla_fused", "xla"])
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param


def operands(*leading):
    shapes = {"x": (*leading, 24), "scale": (24,), "bias": (24,)}
    shapes["residual"] = shapes["x"]
    return {
        n: jnp.asarray(sample("normal", i, s))
        for i, (n, s) in enumerate(shapes.items())
    }


def loss(given, implementation):
    out, total = tokumx.layer_norm(**given, implementation=implementation)
    return jnp.sum(out * jnp.sin(out) + jnp.cos(total))


def assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, atol=2e-5)


@pytest.mark.parametrize(
    "batched",
    [{"x", "residual"}, {"scale"}, {"x", "residual", "scale", "bias"}],
    ids=["rows", "scale", "all"],
)
def test_norm_under_vmap_equals_a_loop(batched, implementation):
    given = operands(2, 3)
    axes = {n: 0 if n in batched else None for n in given}
    stacked = {
        n: jnp.stack([x, 2 * x, -x]) if n in batched else x for n, x in given.items()
    }
    grad = jax.grad(functools.partial(loss, implementation=implementation))
    together = jax.jit(jax.vmap(grad, in_axes=(axes,)))(stacked)
    for i in range(3):
        one = {n: x[i] if n in batched else x for n, x in stacked.items()}
        assert_close({n: g[i] for n, g in together.items()}, grad(one))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_norm_rows_split_over_devices(axis_type, implementation):
    given = operands(4, 8)
    grad = jax.grad(functools.partial(loss, implementation=implementation))
    expected = grad(given)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    rows = NamedSharding(mesh, P("data", "model"))
    whole = NamedSharding(mesh, P())
    with jax.set_mesh(mesh):
        placed = {
            n: jax.device_put(x, rows if x.ndim > 1 else whole)
            for n, x in given.items()
        }
        lowered = jax.jit(grad).lower(placed)
        assert "all-gather" not in lowered.compile().as_text()
        actual = jax.jit(grad)(placed)
    assert_close(actual, expected)
    assert tuple(actual["x"].sharding.spec)[:2] == ("data", "model")


def test_norm_in_shard_map(implementation):
    given = operands(8, 3)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    specs = {n: P("data") if x.ndim > 1 else P() for n, x in given.items()}

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(specs,), out_specs=P())
    def parallel(given):
        return jax.lax.psum(loss(given, implementation), "data")

    expected = jax.grad(functools.partial(loss, implementation="xla"))(given)
    assert_close(jax.jit(jax.grad(parallel))(given), expected)


def test_norm_in_a_scan_of_remat_layers(implementation):
    x = operands(5)["x"]
    scales = jnp.asarray(sample("normal", 7, (3, 24)))

    @jax.checkpoint
    def layer(x, scale):
        return x + tokumx.rms_norm(x, scale, implementation=implementation)

    def scanned(x, scales):
        return jax.lax.scan(lambda x, s: (layer(x, s), None), x, scales)[0].sum()

    def unrolled(x, scales):
        for scale in scales:
            x = x + tokumx.rms_norm(x, scale, implementation="xla")
        return x.sum()

    grads = [jax.jit(jax.grad(f, (0, 1)))(x, scales) for f in (scanned, unrolled)]
    assert_close(*grads)


def test_norm_exports_for_every_platform(implementation):
    given = operands(3)
    grad = jax.jit(jax.grad(functools.partial(loss, implementation=implementation)))
    exported = jax.export.export(grad, platforms=["tpu", "cuda", "cpu"])(given)
    again = jax.export.deserialize(exported.serialize())
    assert_close(again.call(given), grad(given))


def test_norm_takes_a_symbolic_batch():
    (b,) = jax.export.symbolic_shape("b")
    run = jax.jit(lambda x: tokumx.rms_norm(x))
    exported = jax.export.export(run)(jax.ShapeDtypeStruct((b, 24), jnp.float32))
    x = operands(5)["x"]
    assert_close(exported.call(x), run(x))


def test_norm_in_float64():
    with jax.enable_x64(True):
        given = {n: x.astype(jnp.float64) for n, x in operands(3).items()}
        made = tokumx.explain(loss, given, None).calls
        assert [c.decision.implementation for c in made] == ["xla_fused"]
        ours, plain = (jax.grad(loss)(given, i) for i in (None, "xla"))
        for name, gradient in ours.items():
            np.testing.assert_allclose(gradient, plain[name], atol=1e-14)
