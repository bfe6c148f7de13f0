"""The gate refuses wrong contestants, and says what is wrong."""

import jax
import jax.numpy as jnp
import pytest

from tokumx.bench.gate import Gate
from tokumx.bench.steps import make_cotangent, step_function


def judged(case, function, name="tokumx", work="forward_backward"):
    arrays = case.make_arrays()
    cotangent = make_cotangent(case, arrays)
    gate = Gate(case, arrays, cotangent, "forward_backward")
    results = jax.device_get(step_function(function, case, work)(arrays, cotangent))
    return gate.judge(name, results)


def off_by(error):
    return lambda arrays: arrays["x"] ** 2 + error


@jax.custom_vjp
def _square_with_wrong_gradient(x):
    return x * x


def _forward(x):
    return x * x, x


def _backward(x, g):
    return (x * g,)


_square_with_wrong_gradient.defvjp(_forward, _backward)


@pytest.mark.parametrize("work", ["forward", "forward_backward"])
def test_gate_passes_the_right_result(tiny_case, work):
    assert judged(tiny_case([]), off_by(0.0), work=work).ok


def test_gate_refuses_a_wrong_output(tiny_case):
    verdict = judged(tiny_case([]), off_by(1e-4))
    assert not verdict.ok
    assert verdict.worst.name == "out"
    assert verdict.worst.error == pytest.approx(1e-4, rel=1e-2)


def test_gate_refuses_a_wrong_gradient_of_a_right_output(tiny_case):
    verdict = judged(
        tiny_case([]), lambda arrays: _square_with_wrong_gradient(arrays["x"])
    )
    assert not verdict.ok
    assert verdict.worst.name == "d_x"


def test_gate_refuses_nan_and_another_shape(tiny_case):
    case = tiny_case([])
    nan = judged(case, lambda a: a["x"] * jnp.nan, work="forward")
    assert not nan.ok
    short = judged(case, lambda a: a["x"][:3], work="forward")
    assert not short.ok
    assert "shape (3,)" in str(short.worst)


def test_gate_allows_peers_another_order_of_summation_only(tiny_case):
    eps = float(jnp.finfo(jnp.float32).eps)
    function = off_by(8 * eps)  # between the budget of tokumx and that of a peer
    assert not judged(tiny_case([]), function, "tokumx").ok
    assert not judged(tiny_case([]), function, "tokumx f32").ok
    assert judged(tiny_case([]), function, "peer").ok
    assert not judged(tiny_case([]), off_by(1e-4), "peer").ok
