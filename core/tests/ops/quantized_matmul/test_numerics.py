"""The numerics rule and the definition, forward and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx import native
from tokumx.numerics import DISTRIBUTIONS, check, sample
from tokumx.quant import QTYPES

KINDS = {
    "int8": ("int8", {"axis": 0}),
    "int8-tensor": ("int8", {}),
    "int8-groups": ("int8", {"axis": 0, "group_size": 16}),
    "int8-zero": ("int8", {"axis": 0, "symmetric": False}),
    "int4": ("int4", {"axis": 0, "group_size": 32}),
    "int4-odd-groups": ("int4", {"axis": 0, "group_size": 3}),
    "int4-zero": ("int4", {"axis": 0, "group_size": 8, "symmetric": False}),
    "int4-bytes": ("int4", {"axis": 0, "packed": False}),
    "e4m3": ("float8_e4m3fn", {"axis": 0}),
    "e5m2-groups": ("float8_e5m2", {"axis": 0, "group_size": 48}),
}


def weights_of(kind, k=96, n=40, distribution="normal"):
    qtype, how = KINDS[kind]
    return tokumx.quantize(sample(distribution, 1, (k, n)) / k**0.5, qtype, **how)


def checked(x, weights, **how):
    multiply = functools.wraps(tokumx.quantized_matmul)(
        lambda x, **how: tokumx.quantized_matmul(x, weights, **how)
    )
    check(multiply, x, **how).raise_if_wrong()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantized_matmul_is_as_right_as_plain(dtype, kind, implementation):
    x = sample("normal", 0, (3, 5, 96), dtype)
    checked(x, weights_of(kind), implementation=implementation)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_quantized_matmul_of_every_distribution(distribution, implementation):
    x = sample(distribution, 0, (7, 96), "float32")
    weights = weights_of("int8", distribution=distribution)
    checked(x, weights, implementation=implementation)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 63, 17), (255, 2, 1), (4, 4094, 33)])
def test_quantized_matmul_odd_sizes(shape, implementation):
    rows, k, n = shape
    x = sample("normal", 0, (rows, k), "float16")
    checked(x, weights_of("int8", k, n), implementation=implementation)


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_matmul_is_its_definition(kind, implementation):
    weights = weights_of(kind)
    values = np.asarray(weights.unpacked().values, np.float64)
    tile = weights.tile
    scales, zero = (
        np.repeat(np.repeat(np.asarray(a, np.float64), tile[0], 0), tile[1], 1)
        for a in (
            weights.scales,
            np.zeros(weights.scales.shape)
            if weights.zero_points is None
            else weights.zero_points,
        )
    )
    x = sample("normal", 0, (96,))
    bias = sample("normal", 2, (40,))
    expected = np.asarray(x, np.float64) @ ((values - zero) * scales) + bias
    actual = tokumx.quantized_matmul(
        x, weights, bias=bias, implementation=implementation
    )
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize("qtype", QTYPES)
def test_quantized_matmul_rounds_activations_row_by_row(qtype, implementation):
    x, weights = sample("activation", 0, (6, 96)), weights_of("int8")
    rounded = tokumx.quantize(x, qtype, axis=-1, packed=False).dequantize()
    how = {"implementation": implementation}
    actual = tokumx.quantized_matmul(x, weights, activation_qtype=qtype, **how)
    expected = tokumx.quantized_matmul(rounded, weights, **how)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_quantized_matmul_gradient_passes_the_rounding(implementation):
    x, weights = jnp.asarray(sample("normal", 0, (6, 96))), weights_of("int4")
    ct = sample("normal", 2, (6, 40))

    def gradient(**how):
        run = functools.partial(
            tokumx.quantized_matmul, implementation=implementation, **how
        )
        return jax.vjp(lambda x: run(x, weights), x)[1](ct)[0]

    np.testing.assert_allclose(gradient(activation_qtype="int8"), gradient(), atol=1e-5)
    np.testing.assert_allclose(gradient(), ct @ weights.dequantize().T, atol=1e-5)


def test_quantized_matmul_without_rows(implementation):
    out = tokumx.quantized_matmul(
        jnp.zeros((2, 0, 96)), weights_of("int4"), implementation=implementation
    )
    assert out.shape == (2, 0, 40)


def test_quantized_weights_are_constants(implementation):
    weights, x = weights_of("int8"), jnp.ones((2, 96))

    def loss(scales):
        scaled = weights.__class__(weights.values, scales, None, "int8", None)
        return tokumx.quantized_matmul(x, scaled, implementation=implementation).sum()

    np.testing.assert_array_equal(
        jax.grad(loss)(weights.scales), np.zeros_like(weights.scales)
    )


@pytest.mark.parametrize("name", native.library().instruction_sets
                         if native.library() else ["none"])  # fmt: skip
@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("kind", ["int8-zero", "int4-zero", "e4m3", "e5m2-groups"])
def test_native_quantized_matmul_on_every_instruction_set(
    kind, rows, name, skip_unless_native
):
    skip_unless_native()
    with native.use_instruction_set(name):
        x = sample("normal", 0, (rows, 96), "float32")
        checked(x, weights_of(kind, n=77), implementation="cpu_native")


@pytest.mark.parametrize("rows", [1, 50])
def test_native_quantized_matmul_has_the_same_digits_with_any_number_of_threads(
    rows, skip_unless_native, monkeypatch
):
    skip_unless_native()
    x, weights = sample("normal", 0, (rows, 96)), weights_of("int4", n=900)

    def both():
        run = functools.partial(
            tokumx.quantized_matmul, weights=weights, implementation="cpu_native"
        )
        out, pull_back = jax.vjp(jax.jit(lambda x: run(x)), x)
        return out, *pull_back(out)

    several = both()
    jax.clear_caches()
    monkeypatch.setattr("tokumx.native.quantized_dot.threads", lambda: 1)
    for one, other in zip(both(), several, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("rows", "takes"), [(1, "cpu_native"), (512, "xla")])
def test_quantized_matmul_of_many_rows_makes_small_weights_whole(
    rows, takes, skip_unless_native
):
    skip_unless_native()
    weights = weights_of("int8")
    made = tokumx.explain(tokumx.quantized_matmul, jnp.ones((rows, 96)), weights).calls
    assert [c.decision.implementation for c in made] == [takes]
