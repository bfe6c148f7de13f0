"""Every refusal, word for word."""

import dataclasses

import jax.numpy as jnp
import pytest

import tokumx

X = jnp.zeros((3, 8))
W = tokumx.quantize(jnp.ones((8, 4)), axis=0)
CASES = {
    "x": (
        {"x": X.astype(jnp.int32)},
        "x must be [..., K] of float32, bfloat16, float16, float64; got x=i32[3,8]. "
        "Cast it to one of them.",
    ),
    "plain-weights": (
        {"weights": jnp.ones((8, 4))},
        "weights: QArray: an array must be a tokumx.QArray or Qwix's; got ArrayImpl. "
        "Make one with tokumx.quantize.",
    ),
    "shape": (
        {"x": X[:, :4]},
        "weights must be [K, N], K the last axis of x; got x=f32[3,4] weights=[8, 4] "
        "(int8). Transpose before quantizing if they are [N, K].",
    ),
    "column-groups": (
        {"weights": tokumx.quantize(jnp.ones((8, 4)), axis=1, group_size=2)},
        "columns must share one scale, or each have their own; got x=f32[3,8] "
        "weights=[8, 4] (int8) scales=f32[8,2]. Groups are along K: "
        "tokumx.quantize(w, axis=0, group_size=...).",
    ),
    "scales": (
        {"weights": dataclasses.replace(W, scales=jnp.ones((3, 4)))},
        "weights: each axis of scales must divide the array's; got "
        "scales=float32[3,4] for an array [8, 4]. Make one with tokumx.quantize.",
    ),
    "values": (
        {"weights": dataclasses.replace(W, qtype="int4", packed_axis=-2)},
        "weights: values must be uint8; got int8[8,4]. Make one with tokumx.quantize.",
    ),
    "packed": (
        {"weights": dataclasses.replace(W, packed_axis=-2)},
        "weights: only int4 is packed; got qtype='int8'. Make one with "
        "tokumx.quantize.",
    ),
    "zero-points": (
        {"weights": dataclasses.replace(W, zero_points=jnp.zeros((2, 4), jnp.int8))},
        "weights: zero_points may not be finer than scales; got int8[2,4] and "
        "float32[1,4]. Make one with tokumx.quantize.",
    ),
    "bias": (
        {"bias": jnp.zeros(3)},
        "bias must be floating, [N] = [4]; got bias=f32[3]. Give it one entry for each "
        "column of weights.",
    ),
    "activation": (
        {"activation_qtype": "int2"},
        "activation_qtype must be None or among int8, int4, float8_e4m3fn, "
        "float8_e5m2; got 'int2'. None leaves x as it is.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_quantized_matmul_refuses_in_these_words(case):
    given, text = CASES[case]
    with pytest.raises(ValueError) as error:
        tokumx.quantized_matmul(**{"x": X, "weights": W, **given})
    assert str(error.value) == f"quantized_matmul: {text}"
