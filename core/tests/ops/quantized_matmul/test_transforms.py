"""Under every jax transformation, on one device and on eight."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx
from tokumx.numerics import sample


def operands(qtype="int4", group_size=8):
    wide = sample("normal", 1, (64, 24)) / 8
    return (
        jnp.asarray(sample("normal", 0, (8, 3, 64))),
        tokumx.quantize(wide, qtype, axis=0, group_size=group_size),
    )


def loss(x, weights, implementation):
    out = tokumx.quantized_matmul(x, weights, implementation=implementation)
    return jnp.sum(out * jnp.sin(out))


def assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-6, atol=3e-5)


@pytest.mark.parametrize("qtype", ["int4", "int8"])
@pytest.mark.parametrize("batched", ["x", "weights", "both"])
def test_quantized_matmul_under_vmap_equals_a_loop(batched, qtype, implementation):
    x, weights = operands(qtype)
    axes = (None if batched == "weights" else 0, None if batched == "x" else 0)
    stack = lambda a: jnp.stack([a, a[::-1], a[::-1]])  # noqa: E731
    given = [
        jax.tree.map(stack, a) if axis == 0 else a
        for a, axis in zip((x, weights), axes, strict=True)
    ]
    grad = jax.grad(functools.partial(loss, implementation=implementation))
    together = jax.jit(jax.vmap(grad, in_axes=axes))(*given)
    for i in range(3):
        pick = operator.itemgetter(i)
        one = [
            jax.tree.map(pick, a) if axis == 0 else a
            for a, axis in zip(given, axes, strict=True)
        ]
        assert_close(together[i], grad(*one))


SPLITS = {
    "rows": (P("data", None, None), P(), P()),
    "columns": (P("data", None, None), P(None, "model"), P(None, "model")),
    "inner": (P("data", None, "model"), P("model"), P("model")),
}


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", SPLITS)
def test_quantized_matmul_over_devices(split, axis_type, implementation):
    x, weights = operands()
    grad = jax.value_and_grad(functools.partial(loss, implementation=implementation))
    expected = grad(x, weights)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    place = lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec))  # noqa: E731
    of_x, of_values, of_scales = SPLITS[split]
    with jax.set_mesh(mesh):
        placed = tokumx.QArray(
            place(weights.values, of_values),
            place(weights.scales, of_scales),
            None,
            weights.qtype,
            weights.packed_axis,
        )
        given = place(x, of_x), placed
        lowered = jax.jit(grad).lower(*given)
        if axis_type == AxisType.Explicit or implementation != "xla":
            assert "all-gather" not in lowered.compile().as_text()
        assert_close(jax.jit(grad)(*given), expected)


def test_quantized_matmul_in_shard_map(implementation):
    x, weights = operands()
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("data"), P()), out_specs=P()
    )
    def parallel(x, weights):
        return jax.lax.psum(loss(x, weights, implementation), "data")

    expected = jax.grad(functools.partial(loss, implementation="xla"))(x, weights)
    assert_close(jax.jit(jax.grad(parallel))(x, weights), expected)


def test_quantized_matmul_in_a_scan_of_remat_layers(implementation):
    x = operands()[0]
    wide = jnp.asarray(sample("normal", 7, (3, 64, 64))) / 8
    layers = jax.vmap(lambda w: tokumx.quantize(w, axis=0))(wide)

    @functools.partial(jax.checkpoint, static_argnums=2)
    def layer(x, weights, implementation):
        return x + tokumx.quantized_matmul(x, weights, implementation=implementation)

    def scanned(x):
        step = lambda x, w: (layer(x, w, implementation), None)  # noqa: E731
        return jax.lax.scan(step, x, layers)[0].sum()

    def unrolled(x):
        for i in range(3):
            x = layer(x, jax.tree.map(operator.itemgetter(i), layers), "xla")
        return x.sum()

    assert_close(*(jax.jit(jax.grad(f))(x) for f in (scanned, unrolled)))


def test_quantized_matmul_exports_for_every_platform(implementation):
    given = operands()
    grad = jax.jit(jax.grad(functools.partial(loss, implementation=implementation)))
    x, weights = given
    from_leaves = jax.jit(
        lambda x, values, scales: grad(
            x, tokumx.QArray(values, scales, None, "int4", -2)
        )
    )
    leaves = x, weights.values, weights.scales
    exported = jax.export.export(from_leaves, platforms=["tpu", "cuda", "cpu"])(*leaves)
    again = jax.export.deserialize(exported.serialize())
    assert_close(again.call(*leaves), grad(*given))


def test_quantized_matmul_takes_a_symbolic_batch():
    (b,) = jax.export.symbolic_shape("b")
    x, weights = operands()
    run = jax.jit(lambda x: tokumx.quantized_matmul(x, weights))
    exported = jax.export.export(run)(jax.ShapeDtypeStruct((b, 64), jnp.float32))
    assert_close(exported.call(x[0]), run(x[0]))


@pytest.mark.parametrize("implementation", ["xla_blocked", "xla"])
def test_quantized_matmul_in_float64(implementation):
    with jax.enable_x64(True):
        x, weights = operands()
        x = x.astype(jnp.float64)
        out = tokumx.quantized_matmul(x, weights, implementation=implementation)
        assert out.dtype == jnp.float64
        expected = x @ weights.dequantize(jnp.float64)
        np.testing.assert_allclose(out, expected, atol=1e-13)
