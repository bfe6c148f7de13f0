"""Every refusal, word for word."""

import jax.numpy as jnp
import pytest

import tokumx

X = jnp.zeros((3, 4))
FUSED = jnp.zeros((4, 2, 6))
NAMES = "silu, gelu, gelu_tanh, relu, sigmoid, swiglu_oai"
CASES = {
    "activation-alias": (
        {"activation": "swish"},
        f"activation must be among {NAMES}; got 'swish'. Did you mean 'silu'?",
    ),
    "activation-typo": (
        {"activation": "gelu_tan"},
        f"activation must be among {NAMES}; got 'gelu_tan'. Did you mean 'gelu_tanh'?",
    ),
    "activation-unknown": (
        {"activation": None},
        f"activation must be among {NAMES}; got None. Pass one of these names.",
    ),
    "limit": (
        {"limit": 0},
        "limit must be None or a positive number; got limit=0. Pass a Python float.",
    ),
    "alpha-infinite": (
        {"activation": "swiglu_oai", "alpha": float("inf")},
        "alpha must be None or a finite number; got alpha=inf. Pass a Python float.",
    ),
    "alpha-for-silu": (
        {"alpha": 1.0},
        "alpha is for activation='swiglu_oai' only; got alpha=1.0 "
        "activation='silu'. Leave it out.",
    ),
    "weights-flat": (
        {"weights": jnp.zeros((4, 12))},
        "weights must be [D, 2, F], or a pair of [D, F]; got x=f32[3,4] "
        "weights=f32[4,12]. Reshape a [D, 2 * F] array of gate and up to [D, 2, F].",
    ),
    "weights-pair": (
        {"weights": (jnp.zeros((4, 6)), jnp.zeros((4, 5)))},
        "weights must be [D, 2, F], or a pair of [D, F]; got x=f32[3,4] "
        "weights=(f32[4,6], f32[4,5]). "
        "Reshape a [D, 2 * F] array of gate and up to [D, 2, F].",
    ),
    "x": (
        {"x": jnp.zeros((3, 5))},
        "the last axis of x must be D, the first of the weights; got x=f32[3,5] "
        "weights=f32[4,2,6]. Transpose the weights if they are [F, D].",
    ),
    "dtypes-differ": (
        {"weights": FUSED.astype(jnp.bfloat16)},
        "x and weights must have one dtype; got x=f32[3,4] weights=bf16[4,2,6]. "
        "Cast them, e.g. weights.astype(x.dtype).",
    ),
    "dtype": (
        {"x": X.astype(jnp.int32), "weights": FUSED.astype(jnp.int32)},
        "dtype must be among float32, bfloat16, float16, float64; got "
        "x=i32[3,4] weights=i32[4,2,6]. Cast to one of them.",
    ),
    "bias": (
        {"bias": jnp.zeros((6,))},
        "bias must be floating, [2, F] or a pair of [F], F = 6; got bias=f32[6]. "
        "Pass zeros for a bias that is missing.",
    ),
    "bias-pair": (
        {"bias": (jnp.zeros((6,)), jnp.zeros((6,), jnp.int32))},
        "bias must be floating, [2, F] or a pair of [F], F = 6; got "
        "bias=(f32[6], i32[6]). Pass zeros for a bias that is missing.",
    ),
    "down": (
        {"down_weight": jnp.zeros((4, 6))},
        "down_weight must be [F, O], F = 6; got down_weight=f32[4,6]. "
        "Transpose it if it is [O, F].",
    ),
    "down-dtype": (
        {"down_weight": jnp.zeros((6, 4), jnp.float16)},
        "x and down_weight must have one dtype; got x=f32[3,4] "
        "down_weight=f16[6,4]. Cast them, e.g. down_weight.astype(x.dtype).",
    ),
    "down-bias-alone": (
        {"down_bias": jnp.zeros((4,))},
        "down_bias needs down_weight; got down_bias=f32[4]. Pass both, or neither.",
    ),
    "down-bias": (
        {"down_weight": jnp.zeros((6, 4)), "down_bias": jnp.zeros((6,))},
        "down_bias must be floating, [O] = [4]; got down_bias=f32[6]. "
        "Give it one entry for each column of down_weight.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gated_linear_unit_refuses_in_these_words(case):
    given, text = CASES[case]
    with pytest.raises(ValueError) as error:
        tokumx.gated_linear_unit(**{"x": X, "weights": FUSED, **given})
    assert str(error.value) == f"gated_linear_unit: {text}"


def test_min_rows_must_be_positive():
    from tokumx.ops.gated_linear_unit.xla_recompute import Config

    with pytest.raises(ValueError, match="greater than 0"):
        Config(min_rows=0)
