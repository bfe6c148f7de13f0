"""Quantized arrays: round trips, packing, Qwix's arrays, refusals word for word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.numerics import DISTRIBUTIONS, sample
from tokumx.quant import QTYPES
from tokumx.quant.packing import pack_int4, unpack_int4

# The largest error of a number, as a part of its scale or of itself.
RELATIVE = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
LEAST_NORMAL = {"float8_e4m3fn": 2.0**-6, "float8_e5m2": 2.0**-14}


def tolerance(x, quantized):
    """Of each number: half a step."""
    scales = np.asarray(quantized.scales, np.float64)
    for axis, tile in enumerate(quantized.tile):
        scales = np.repeat(scales, tile, axis)
    if quantized.qtype not in RELATIVE:
        return scales * (0.5 + 1e-4)
    relative = RELATIVE[quantized.qtype]
    least = LEAST_NORMAL[quantized.qtype] * relative * scales
    return np.maximum(np.abs(np.asarray(x, np.float64)) * relative, least) * (1 + 1e-4)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("qtype", QTYPES)
def test_quantize_is_off_by_half_a_step_at_most(qtype, distribution):
    x = sample(distribution, 0, (64, 24))
    for how in ({}, {"axis": 0}, {"axis": -1}, {"axis": 0, "group_size": 16}):
        quantized = tokumx.quantize(x, qtype, **how)
        assert quantized.shape == x.shape
        error = np.abs(np.asarray(quantized.dequantize(), np.float64) - x)
        assert (error <= tolerance(x, quantized)).all(), how


@pytest.mark.parametrize("qtype", ["int8", "int4"])
@pytest.mark.parametrize("offset", [-5.0, 0.0, 5.0])
def test_quantize_with_zero_points_uses_the_whole_range(qtype, offset):
    x = sample("normal", 0, (64, 24)) + offset
    quantized = tokumx.quantize(x, qtype, axis=0, symmetric=False)
    assert quantized.zero_points.dtype == jnp.int8
    assert quantized.zero_points.shape == quantized.scales.shape == (1, 24)
    error = np.abs(np.asarray(quantized.dequantize()) - x)
    assert (error <= np.asarray(quantized.scales) * 1.001).all()
    values = np.asarray(quantized.unpacked().values, np.int32)
    span = 255 if qtype == "int8" else 15
    assert (np.ptp(values, 0) >= span // 3).all()
    # Zero is exact, so that padding stays padding.
    padded = tokumx.quantize(x.at[3].set(0), qtype, axis=0, symmetric=False)
    np.testing.assert_array_equal(padded.dequantize()[3], np.zeros(24))


def test_quantize_twice_changes_nothing():
    x = sample("normal", 0, (32, 8))
    for qtype in QTYPES:
        once = tokumx.quantize(x, qtype, axis=0).dequantize()
        again = tokumx.quantize(once, qtype, axis=0).dequantize()
        np.testing.assert_allclose(again, once, rtol=1e-6)


def test_quantize_of_zeros_and_of_the_tiniest_is_finite():
    for value in (0.0, 1e-45, 1e-38):
        x = jnp.full((4, 4), value)
        for qtype in QTYPES:
            found = tokumx.quantize(x, qtype, axis=0)
            assert np.isfinite(np.asarray(found.scales)).all()
            np.testing.assert_allclose(found.dequantize(), x, atol=1e-38)


def test_quantize_keeps_values_that_fit_scales_of_another_dtype():
    x = sample("normal", 0, (64, 8))
    quantized = tokumx.quantize(x, "int8", axis=0, scale_dtype=jnp.bfloat16)
    assert quantized.dtype == quantized.scales.dtype == jnp.bfloat16
    error = np.abs(np.asarray(quantized.dequantize(jnp.float32)) - x)
    # A scale rounded down by 2**-9 clips the largest numbers.
    assert (error <= np.asarray(quantized.scales, np.float32)).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_int4_packing_is_lossless_along_any_axis(axis):
    values = np.random.default_rng(0).integers(-8, 8, (6, 4, 8)).astype(np.int8)
    packed = pack_int4(jnp.asarray(values), axis)
    assert packed.dtype == jnp.uint8
    assert packed.size == values.size // 2
    np.testing.assert_array_equal(unpack_int4(packed, axis), values)


def test_int4_takes_half_a_byte_and_can_take_one():
    x = sample("normal", 0, (64, 24))
    packed = tokumx.quantize(x, "int4", axis=0)
    plain = tokumx.quantize(x, "int4", axis=0, packed=False)
    assert packed.nbytes - plain.nbytes == -64 * 24 // 2
    np.testing.assert_array_equal(packed.dequantize(), plain.dequantize())
    np.testing.assert_array_equal(packed.unpacked().values, plain.values)


def test_qarray_goes_through_jit_vmap_and_scan():
    x = jnp.asarray(sample("normal", 0, (3, 16, 8)))
    stacked = jax.vmap(lambda w: tokumx.quantize(w, "int4", axis=0))(x)
    assert stacked.shape == (3, 16, 8)
    expected = jnp.stack([tokumx.quantize(w, "int4", axis=0).dequantize() for w in x])
    np.testing.assert_array_equal(jax.jit(lambda q: q.dequantize())(stacked), expected)
    _, scanned = jax.lax.scan(lambda c, q: (c, q.dequantize()), 0, stacked)
    np.testing.assert_array_equal(scanned, expected)


@pytest.mark.parametrize(
    ("qtype", "method"),
    [
        ("int8", "absmax"),
        ("int8", "minmax"),
        ("int4", "absmax"),
        ("int4", "minmax"),
        ("float8_e4m3fn", "absmax"),
    ],
)
def test_qarray_of_qwix_stands_for_the_same_numbers(qtype, method):
    qwix = pytest.importorskip("qwix")
    x = jnp.asarray(sample("normal", 0, (64, 24)))
    theirs = qwix.quantize(
        x, qtype, channelwise_axes=(1,), tiled_axes={0: 16}, calibration_method=method
    )
    ours = tokumx.QArray.of(theirs)
    assert ours.problem() is None
    assert ours.tile == (16, 1)
    np.testing.assert_allclose(ours.dequantize(), qwix.dequantize(theirs), atol=1e-6)
    rows = jnp.asarray(sample("normal", 1, (5, 64)))
    expected = rows @ qwix.dequantize(theirs)
    np.testing.assert_allclose(
        tokumx.quantized_matmul(rows, theirs), expected, atol=2e-5
    )


X = jnp.zeros((4, 6))
REFUSALS = {
    "qtype": (
        {"qtype": "int5"},
        "qtype must be among int8, int4, float8_e4m3fn, float8_e5m2; got 'int5'. Pass "
        "one of these names.",
    ),
    "dtype": (
        {"x": X.astype(jnp.int32)},
        "x must be float32, bfloat16, float16, float64, with an axis and not empty; "
        "got x=int32[4,6]. Cast it, or leave it as it is.",
    ),
    "axis": (
        {"axis": 2},
        "axis must be None, an axis of x, or several different ones; got axis=2 "
        "x=float32[4,6]. Axes count from 0, or from -1 at the end.",
    ),
    "group": (
        {"axis": 0, "group_size": 3},
        "group_size needs one axis, whose size it divides; got group_size=3 axis=(0,) "
        "x=float32[4,6]. Pad the array, or take another size.",
    ),
    "fp8": (
        {"qtype": "float8_e5m2", "symmetric": False},
        "fp8 has no zero point; got qtype='float8_e5m2' symmetric=False. Pass "
        "symmetric=True.",
    ),
    "odd": (
        {"x": X[:3], "qtype": "int4"},
        "two int4 values share a byte along axis -2, whose size must be even; got "
        "x=float32[3,6]. Pass packed=False for a byte each.",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_quantize_refuses_in_these_words(case):
    given, text = REFUSALS[case]
    with pytest.raises(ValueError) as error:
        tokumx.quantize(**{"x": X, **given})
    assert str(error.value) == f"quantize: {text}"


def test_qarray_of_something_else_is_refused():
    with pytest.raises(ValueError) as error:
        tokumx.QArray.of(X)
    assert str(error.value) == (
        "QArray: an array must be a tokumx.QArray or Qwix's; got ArrayImpl. Make one "
        "with tokumx.quantize."
    )
