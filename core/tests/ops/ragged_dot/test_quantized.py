"""Rows times the quantized matrix of their group."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx
from tokumx.numerics import check, sample
from tokumx.ops.ragged_dot.ragged_dot import RAGGED_DOT_QUANTIZED

SIZES = np.array([70, 0, 1, 40, 9], np.int32)
KINDS = {
    "int8": ("int8", {"axis": 1}),
    "int8-whole": ("int8", {}),
    "int4-groups": ("int4", {"axis": 1, "group_size": 16}),
    "int4-zero": ("int4", {"axis": 1, "symmetric": False}),
    "e4m3": ("float8_e4m3fn", {"axis": (1, 2)}),
}


@pytest.fixture(params=[i.name for i in RAGGED_DOT_QUANTIZED.implementations])
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param


def operands(kind="int8", dtype="float32"):
    qtype, how = KINDS[kind]
    wide = sample("normal", 1, (5, 64, 24)) / 8
    return (
        sample("normal", 0, (128, 64), dtype),
        tokumx.quantize(wide, qtype, **how),
        sample("normal", 2, (5, 24)),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantized_ragged_dot_is_as_right_as_plain(dtype, kind, implementation):
    lhs, rhs, bias = operands(kind, dtype)

    @functools.wraps(tokumx.ragged_dot)
    def run(lhs, bias, **how):
        return tokumx.ragged_dot(lhs, rhs, SIZES, bias=bias, **how)

    check(run, lhs, bias, implementation=implementation).raise_if_wrong()


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_ragged_dot_is_that_of_the_matrices(kind, implementation, by_group):
    lhs, rhs, bias = operands(kind)
    out = tokumx.ragged_dot(lhs, rhs, SIZES, bias=bias, implementation=implementation)
    expected = by_group(lhs, rhs.dequantize(), SIZES, bias)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_array_equal(out[SIZES.sum() :], 0)


def test_quantized_ragged_dot_of_some_groups_of_all(implementation, by_group):
    lhs, rhs, _ = operands()
    sizes = np.array([5, 20, 0, 30, 7, 11, 13, 2], np.int32)
    how = {"group_offset": 2, "implementation": implementation}
    out = tokumx.ragged_dot(lhs, rhs, sizes, **how)
    expected = by_group(lhs, rhs.dequantize(), sizes, offset=2)
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_quantized_ragged_dot_under_vmap_equals_a_loop(implementation):
    lhs, rhs, _ = operands("int4-groups")
    lhs = jnp.stack([lhs, lhs[::-1]])
    sizes = jnp.stack([SIZES, SIZES[::-1]])

    def grad(lhs, sizes):
        run = functools.partial(tokumx.ragged_dot, implementation=implementation)
        return jax.grad(lambda x: jnp.sum(jnp.sin(run(x, rhs, sizes))))(lhs)

    together = jax.jit(jax.vmap(grad))(lhs, sizes)
    for i in range(2):
        np.testing.assert_allclose(together[i], grad(lhs[i], sizes[i]), atol=2e-5)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [P("model"), P(None, None, "model")], ids=["g", "n"])
def test_quantized_ragged_dot_of_split_matrices(spec, axis_type, implementation):
    wide = sample("normal", 1, (8, 64, 24)) / 8
    rhs, lhs = tokumx.quantize(wide, axis=1), operands()[0]
    sizes = np.array([30, 0, 1, 40, 9, 8, 7, 6], np.int32)

    def value(lhs, values, scales):
        matrices = tokumx.QArray(values, scales)
        how = {"implementation": implementation}
        return jnp.sum(jnp.sin(tokumx.ragged_dot(lhs, matrices, sizes, **how)))

    expected = jax.value_and_grad(value)(lhs, rhs.values, rhs.scales)
    mesh = jax.make_mesh((4,), ("model",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        place = lambda x, s: jax.device_put(x, NamedSharding(mesh, s))  # noqa: E731
        given = place(lhs, P()), place(rhs.values, spec), place(rhs.scales, spec)
        actual = jax.jit(jax.value_and_grad(value))(*given)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-6, atol=3e-5)


def test_quantized_ragged_dot_takes_qwix(implementation):
    qwix = pytest.importorskip("qwix")
    lhs = operands()[0]
    wide = jnp.asarray(sample("normal", 1, (5, 64, 24)))
    rhs = qwix.quantize(wide, "int8", channelwise_axes=(0, 2))
    out = tokumx.ragged_dot(lhs, rhs, SIZES, implementation=implementation)
    expected = tokumx.ragged_dot(lhs, qwix.dequantize(rhs), SIZES)
    np.testing.assert_allclose(out, expected, atol=5e-5)


REFUSALS = {
    "rank": (
        tokumx.quantize(jnp.ones((64, 24)), axis=0),
        "quantized rhs must be [G, K, N]; got [64, 24]. Use jax.vmap for further axes.",
    ),
    "columns": (
        tokumx.quantize(jnp.ones((5, 64, 24)), axis=2, group_size=8),
        "columns of rhs must share one scale, or each have their own; got "
        "rhs=[5, 64, 24] (int8) scales=f32[5,64,3]. Groups are along K: "
        "tokumx.quantize(w, axis=1, group_size=...).",
    ),
    "scales": (
        tokumx.QArray(jnp.ones((5, 64, 24), jnp.int8), jnp.ones((5, 3, 24))),
        "rhs: each axis of scales must divide the array's; got scales=float32[5,3,24] "
        "for an array [5, 64, 24]. Make one with tokumx.quantize.",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_quantized_ragged_dot_refuses_in_these_words(case):
    rhs, text = REFUSALS[case]
    with pytest.raises(ValueError) as error:
        tokumx.ragged_dot(jnp.zeros((128, 64)), rhs, SIZES)
    assert str(error.value) == f"ragged_dot: {text}"
