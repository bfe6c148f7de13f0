"""What is chosen, and what explain says about it."""

import jax
import jax.numpy as jnp
import pytest

import tokumx
from tokumx.ops.attention import xla_blocked

pytestmark = pytest.mark.usefixtures("without_native")


def shape(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def explained(*dims, **kwargs):
    x = shape(*dims)
    (call,) = tokumx.explain(tokumx.dot_product_attention, x, x, x, **kwargs).calls
    return call.decision


def test_none_takes_the_first_that_can_run():
    decision = explained(1, 4096, 2, 64, is_causal=True)
    assert decision.implementation == "xla_blocked"
    assert dict(decision.rejected) == {
        "cpu_native": "native kernels are switched off here",
        "xla_decode": "query length must be <= 16, got 4096",
        "xla": "can run; expected slower: one product over all keys",
    }


def test_names_are_tried_in_order():
    decision = explained(1, 64, 2, 16, implementation=["xla_decode", "xla_blocked"])
    assert decision.implementation == "xla_blocked"
    assert decision.reason == "asked for by name"


def test_few_queries_over_a_long_cache_take_decode():
    q, kv = shape(4, 1, 8, 64), shape(4, 4096, 8, 64)
    (call,) = tokumx.explain(tokumx.dot_product_attention, q, kv, kv).calls
    assert call.decision.implementation == "xla_decode"


def test_config_for_each_direction_is_taken_from_the_caller():
    forward = xla_blocked.Config(block_q=32, block_kv=32)
    decision = explained(
        1, 64, 2, 16, implementation="xla_blocked", config=tokumx.Configs(forward)
    )
    assert decision.configs.forward == forward
    assert decision.source("forward") == "given by the caller"
    assert decision.source("backward") == "heuristic"


def test_explanation_names_calls_and_counts_in_a_model():
    def model(x):
        def layer(x, _):
            return tokumx.dot_product_attention(x, x, x, is_causal=True), None

        x, _ = jax.lax.scan(layer, x, None, 3)
        return tokumx.dot_product_attention(x, x, x).sum()

    explanation = tokumx.explain(jax.grad(model), shape(1, 32, 2, 16))
    assert [c.count for c in explanation.calls] == [3, 1]
    assert all(c.directions == {"forward", "backward"} for c in explanation.calls)
    assert "called 3 times, forward and backward" in str(explanation)


def test_explanation_finds_calls_in_functions_jitted_before():
    @jax.jit
    def fn(x):
        return tokumx.dot_product_attention(x, x, x)

    x = jnp.zeros((1, 8, 2, 16))
    fn(x)
    assert len(tokumx.explain(fn, x).calls) == 1


def test_explanation_of_a_function_without_calls_says_so():
    assert str(tokumx.explain(jnp.sin, shape(3))) == "no tokumx call was found"


def test_explanation_is_json():
    x = shape(1, 8, 2, 16)
    (entry,) = tokumx.explain(tokumx.dot_product_attention, x, x, x).to_json()
    assert entry["implementation"] == "xla"
    assert entry["call"]["arrays"]["query"] == [[1, 8, 2, 16], "float32"]


def test_use_device_decides_for_a_device_that_is_not_here():
    with tokumx.use_device(tokumx.DeviceSpec("tpu", "TPU v6 lite")):
        decision = explained(1, 2048, 2, 128)
    assert decision.device.kind == "TPU v6 lite"
    assert decision.configs.forward == xla_blocked.heuristic_config(
        decision.call, decision.device, "forward"
    )


@pytest.mark.parametrize("n", [1, 2])
def test_equal_calls_are_compiled_once(n):
    del n
    before = _compiled()
    x = jnp.ones((1, 24, 2, 16))
    for _ in range(3):
        tokumx.dot_product_attention(x, x, x, is_causal=True)
    assert _compiled() - before <= 1


def _compiled():
    from tokumx.dispatch.run import program

    return program.cache_info().misses
