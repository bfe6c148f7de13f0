"""Against the definition in float64, and against other libraries."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokumx
from tokumx.numerics import sample
from tokumx.ops.gated_linear_unit.gating import ACTIVATION_NAMES, narrowed

IMPLEMENTATIONS = ["xla_recompute", "xla"]
_erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


SCALAR = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: (
        x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
}


def by_definition(operands, activation, limit):
    wide = {n: np.asarray(x, np.float64) for n, x in operands.items()}
    if "weights" in wide:
        wide["gate_weight"], wide["up_weight"] = (wide["weights"][:, i] for i in (0, 1))
    gate = wide["x"] @ wide["gate_weight"] + wide.get("gate_bias", 0)
    up = wide["x"] @ wide["up_weight"] + wide.get("up_bias", 0)
    if activation == "swiglu_oai":
        gate, up = np.minimum(gate, limit or 7.0), np.clip(up, -7.0, 7.0)
        hidden = gate * sigmoid(1.702 * gate) * (up + 1)
    else:
        hidden = SCALAR[activation](gate) * up
    if "down_weight" in wide:
        hidden = hidden @ wide["down_weight"]
    return hidden + wide.get("down_bias", 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
def test_gated_linear_unit_is_its_definition(activation, implementation, glu, call):
    for is_fused in (False, True):
        operands = glu((2, 3), is_fused=is_fused).operands()
        operands["x"] *= 4  # so that some values are clipped
        actual = call(**operands, activation=activation, implementation=implementation)
        expected = by_definition(operands, activation, None)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)


def test_limit_clips_for_any_activation(glu, call):
    operands = glu(has_bias=False, has_down=False).operands()
    gate = operands["x"] @ operands["gate_weight"]
    up = operands["x"] @ operands["up_weight"]
    expected = jax.nn.silu(jnp.minimum(gate, 0.5)) * jnp.clip(up, -0.5, 0.5)
    np.testing.assert_allclose(call(**operands, limit=0.5), expected, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_swiglu_oai_at_and_beyond_the_limit(implementation):
    """The gate is clipped only from above, and the gradient passes at 7 itself."""

    def unit(gate, up):
        return tokumx.gated_linear_unit(
            jnp.ones((1,)),
            (gate[None], up[None]),
            activation="swiglu_oai",
            implementation=implementation,
        )

    gate = jnp.array([7.0, 7.001, -7.001, 1.0, 1.0, 1.0, 1.0])
    up = jnp.array([1.0, 1.0, 1.0, 7.0, 7.001, -7.0, -7.001])
    out, pull_back = jax.vjp(unit, gate, up)
    d_gate, d_up = map(np.asarray, pull_back(jnp.ones_like(out)))
    expected = by_definition(
        {"x": np.ones(1), "gate_weight": gate[None], "up_weight": up[None]},
        "swiglu_oai",
        7.0,
    )
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert (d_gate != 0).tolist() == [True, False, True, True, True, True, True]
    assert (d_up != 0).tolist() == [True, True, True, True, False, True, False]


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu", "sigmoid"])
def test_gated_linear_unit_agrees_with_tokamax(name, dtype, is_fused, glu, call):
    tokamax = pytest.importorskip("tokamax")
    theirs = {
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_tanh": jax.nn.gelu,
        "relu": jax.nn.relu,
        "sigmoid": jax.nn.sigmoid,
    }[name]
    shape = glu(is_fused=is_fused, has_bias=False, has_down=False)
    operands = shape.operands("normal", dtype)
    weights = operands.get("weights")
    if weights is None:
        weights = operands["gate_weight"], operands["up_weight"]
    expected = tokamax.gated_linear_unit(
        operands["x"], weights, activation=theirs, implementation="xla"
    )
    actual = call(**operands, activation=name)
    eps = float(jnp.finfo(dtype).eps)
    wide = np.asarray(expected, np.float64)
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), wide, rtol=0, atol=8 * eps * np.abs(wide).max()
    )


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
def test_gated_linear_unit_and_gradients_agree_with_torch(activation, glu, call):
    torch = pytest.importorskip("torch")
    operands = glu().operands()
    operands["x"] *= 4
    leaves = {
        n: torch.tensor(np.asarray(x), requires_grad=True) for n, x in operands.items()
    }
    gate = leaves["x"] @ leaves["gate_weight"] + leaves["gate_bias"]
    up = leaves["x"] @ leaves["up_weight"] + leaves["up_bias"]
    if activation == "swiglu_oai":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    elif activation == "silu":
        hidden = torch.nn.functional.silu(gate) * up
    else:
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        hidden = torch.nn.functional.gelu(gate, approximate=approximate) * up
    theirs = hidden @ leaves["down_weight"] + leaves["down_bias"]
    out, pull_back = jax.vjp(lambda ops: call(**ops, activation=activation), operands)
    np.testing.assert_allclose(out, theirs.detach().numpy(), rtol=0, atol=2e-5)
    cotangent = np.asarray(sample("normal", 99, out.shape))
    theirs.backward(torch.tensor(cotangent))
    (gradients,) = pull_back(jnp.asarray(cotangent))
    for name, g in gradients.items():
        expected = leaves[name].grad.numpy()
        np.testing.assert_allclose(
            g, expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=name
        )


class _Options:
    """Stands for a call: all that narrowed asks of one."""

    def __init__(self, limit):
        self._limit = limit

    def option(self, name):
        assert name == "limit"
        return self._limit


@settings(max_examples=60, deadline=None)
@given(
    limit=st.floats(0.01, 1000),
    steps=st.lists(st.integers(-300, 300), min_size=1, max_size=8),
    dtype=st.sampled_from(["bfloat16", "float16"]),
)
def test_rounding_keeps_a_value_on_its_side_of_the_limit(limit, steps, dtype):
    limit32 = np.float32(limit)
    near = limit32 * (1 + np.array(steps, np.float32) * np.float32(2**-16))
    x = jnp.asarray(np.concatenate([near, -near]).astype(np.float32))
    gate, up = narrowed(x, x, jnp.dtype(dtype), _Options(float(limit)))
    assert gate.dtype == up.dtype == jnp.dtype(dtype)
    for narrow in (gate, up):
        wide = np.asarray(narrow, np.float32)
        assert ((wide > limit32) == (np.asarray(x) > limit32)).all()
        np.testing.assert_allclose(wide, x, rtol=2**-7)
    assert ((np.asarray(up, np.float32) < -limit32) == (np.asarray(x) < -limit32)).all()


def test_backward_keeps_two_narrow_arrays_a_row(glu, call):
    """Beside the operands: gate and up, in the operands' dtype."""
    operands = glu((64,), d=8, f=128, o=8, has_bias=False).operands(
        "normal", "bfloat16"
    )
    _, pull_back = jax.vjp(
        lambda ops: call(**ops, implementation="xla_recompute"), operands
    )
    of_rows = [
        x
        for x in jax.tree.leaves(pull_back)
        if hasattr(x, "shape") and x.shape == (64, 128)
    ]
    assert [x.dtype for x in of_rows] == [jnp.bfloat16, jnp.bfloat16]
