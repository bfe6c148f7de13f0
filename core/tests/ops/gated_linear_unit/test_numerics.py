"""The numerics rule, forward and gradients, over dtypes, sizes and inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tokumx.numerics import DISTRIBUTIONS, check
from tokumx.ops.gated_linear_unit.gating import ACTIVATION_NAMES
from tokumx.ops.gated_linear_unit.xla_recompute import Config

IMPLEMENTATIONS = ["xla_recompute", "xla"]
KINDS = {
    "apart": {"has_bias": False},
    "fused": {"is_fused": True, "has_bias": False},
    "apart-bias": {},
    "fused-bias": {"is_fused": True},
    "up": {"has_down": False},
    "fused-up": {"is_fused": True, "has_down": False, "has_bias": False},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("activation", ["silu", "swiglu_oai"])
def test_recompute_is_as_right_as_plain(activation, distribution, dtype, glu, call):
    check(
        call,
        **glu(is_fused=activation != "silu").operands(distribution, dtype),
        activation=activation,
        implementation="xla_recompute",
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
def test_recompute_is_right_for_every_activation(activation, dtype, glu, call):
    check(
        call,
        **glu(has_bias=False).operands("normal", dtype),
        activation=activation,
        implementation="xla_recompute",
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_recompute_is_right_for_every_set_of_operands(kind, dtype, glu, call):
    check(
        call,
        **glu(lead=(3, 5), **KINDS[kind]).operands("activation", dtype),
        activation="gelu_tanh",
        limit=2.5,
        implementation="xla_recompute",
    ).raise_if_wrong()


@pytest.mark.parametrize(
    ("lead", "d", "f", "o"),
    [((1,), 1, 1, 1), ((63,), 65, 1, 127), ((2, 1, 3), 7, 123, 5), ((257,), 33, 64, 2)],
)
def test_recompute_odd_sizes(lead, d, f, o, glu, call):
    operands = glu(lead, d, f, o).operands()
    check(call, **operands, implementation="xla_recompute").raise_if_wrong()


@pytest.mark.parametrize(
    ("lead", "min_rows", "is_fused"),
    [((), 2, False), ((1,), 2, True), ((1, 1), 8, False), ((1,), 1, True)],
)
def test_a_single_row_is_right_however_it_is_padded(
    lead, min_rows, is_fused, glu, call
):
    check(
        call,
        **glu(lead, is_fused=is_fused).operands("normal", "bfloat16"),
        implementation="xla_recompute",
        config=Config(min_rows=min_rows),
    ).raise_if_wrong()


def _gradients(call, operands, **options):
    out, pull_back = jax.vjp(lambda ops: call(**ops, **options), operands)
    return {"out": out} | pull_back(jnp.ones_like(out))[0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
def test_huge_pre_activations_give_no_nan(activation, dtype, implementation, call):
    """exp of these overflows in either direction."""
    x = jnp.array([[1e4], [-1e4], [1e15], [-1e15], [0.0]], dtype)
    ones = jnp.ones((1, 3), dtype)
    results = _gradients(
        call,
        {"x": x, "gate_weight": ones, "up_weight": 1e-3 * ones},
        activation=activation,
        implementation=implementation,
    )
    for name, value in results.items():
        assert np.isfinite(np.asarray(value, np.float64)).all(), name
    if activation != "sigmoid":  # which keeps up's sign
        assert (np.asarray(results["out"], np.float64)[1] == 0).all()


def test_f16_pre_activations_beyond_its_range_have_finite_gradients(call):
    x = jnp.array([[300.0], [-300.0]], jnp.float16)
    weights = jnp.full((1, 2), 300, jnp.float16), jnp.full((1, 2), 1e-3, jnp.float16)
    results = _gradients(
        call,
        {"x": x, "gate_weight": weights[0], "up_weight": weights[1]},
        implementation="xla_recompute",
    )
    assert jnp.isfinite(results["out"]).all()
    assert jnp.isfinite(results["gate_weight"]).all()
    assert jnp.isfinite(results["x"]).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_zero_rows_give_zeros_and_leave_the_weights_gradients_alone(
    implementation, glu, call
):
    operands = glu(has_bias=False).operands()
    operands["x"] = operands["x"].at[3:6].set(0)
    results = _gradients(call, operands, implementation=implementation)
    assert not results["out"][3:6].any()
    kept = {**operands, "x": jnp.delete(operands["x"], jnp.arange(3, 6), axis=0)}
    expected = _gradients(call, kept, implementation=implementation)
    for name in ("gate_weight", "up_weight", "down_weight"):
        np.testing.assert_allclose(results[name], expected[name], rtol=0, atol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_rows_at_all(dtype, is_fused, implementation, glu, call):
    operands = glu((2, 0), is_fused=is_fused).operands("normal", dtype)
    results = _gradients(call, operands, implementation=implementation)
    assert results["out"].shape == (2, 0, 17)
    assert not any(g.any() for n, g in results.items() if n != "out")


@pytest.mark.parametrize("limit", [7.0, 0.3, 1.7])
def test_narrow_gradients_do_not_jump_where_a_value_rounds_across_the_limit(
    limit, call
):
    """The products differ from the limit by less than bf16 can show."""
    near = limit * (1 + np.array([-1, -1e-3, 1e-3, 1]) * 2.0**-10)
    x = jnp.asarray(np.stack([near, near * 2.0**-8], 1), jnp.bfloat16)
    # Two terms, so that the sum has more digits than x.
    gate = jnp.array([[1.0], [1.0]], jnp.bfloat16)
    operands = {"x": x, "gate_weight": gate, "up_weight": gate}
    options = {"activation": "swiglu_oai", "limit": limit}
    ours, plain = (
        _gradients(call, operands, **options, implementation=i) for i in IMPLEMENTATIONS
    )
    for name in operands:
        np.testing.assert_allclose(
            np.asarray(ours[name], np.float32),
            np.asarray(plain[name], np.float32),
            rtol=0.02,
            atol=0.02,
        )
