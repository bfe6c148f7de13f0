"""Every refusal, word for word."""

import jax.numpy as jnp
import pytest

import tokumx

X = jnp.zeros((3, 4))
CASES = {
    "axis-out-of-range": (
        {"axis": 2},
        "axis must be an axis of x, or several different ones; got axis=2 "
        "x=f32[3,4]. Axes count from 0, or from -1 at the end.",
    ),
    "axis-twice": (
        {"axis": (1, -1)},
        "axis must be an axis of x, or several different ones; got axis=(1, -1) "
        "x=f32[3,4]. Axes count from 0, or from -1 at the end.",
    ),
    "axis-none": (
        {"axis": ()},
        "axis must be an axis of x, or several different ones; got axis=() "
        "x=f32[3,4]. Axes count from 0, or from -1 at the end.",
    ),
    "empty": (
        {"x": jnp.zeros((3, 0))},
        "the normalized axes must not be empty; got axis=-1 x=f32[3,0]. "
        "A mean over nothing is not defined.",
    ),
    "dtype": (
        {"x": X.astype(jnp.int32)},
        "x must be of float32, bfloat16, float16, float64; got x=i32[3,4]. "
        "Cast it to one of them.",
    ),
    "scale": (
        {"scale": jnp.zeros(3)},
        "scale must be floating, of the normalized axes' shape [4]; got "
        "scale=f32[3] x=f32[3,4]. Pass one number for each place of a row.",
    ),
    "residual": (
        {"residual": X.astype(jnp.bfloat16)},
        "residual must have x's shape and dtype; got x=f32[3,4] "
        "residual=bf16[3,4]. Broadcast and cast it before the call.",
    ),
    "eps-negative": (
        {"eps": -1e-6},
        "eps must be a Python number >= 0; got -1e-06. It is part of the program.",
    ),
    "eps-array": (
        {"eps": jnp.ones(2)},
        "eps must be a Python number >= 0; got ArrayImpl. It is part of the program.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_norm_refuses_in_these_words(case):
    given, text = CASES[case]
    for norm in (tokumx.rms_norm, tokumx.layer_norm):
        with pytest.raises(ValueError) as error:
            norm(**{"x": X, **given})
        assert str(error.value) == f"{norm.__name__}: {text}"
