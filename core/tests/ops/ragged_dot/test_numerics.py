"""Errors against float64, every implementation, dtype and distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.numerics import DISTRIBUTIONS, check, sample
from tokumx.ops.ragged_dot.xla_blocked import Config

SIZES = {
    "uneven": [70, 0, 1, 200, 29],
    "one_group": [0, 0, 300, 0, 0],
    "none": [0, 0, 0, 0, 0],
    "sum_below_m": [10, 30, 0, 64, 5],
}
CASES = [
    *(("uneven", "float32", d) for d in DISTRIBUTIONS),
    *((sizes, "float32", "normal") for sizes in SIZES),
    *(("uneven", dtype, "activation") for dtype in ("bfloat16", "float16")),
    ("sum_below_m", "bfloat16", "huge"),
]


@pytest.mark.parametrize(("sizes", "dtype", "distribution"), CASES)
def test_ragged_dot_error_is_within_budget(sizes, dtype, distribution):
    m, k, n, g = 300, 33, 47, 5
    lhs = sample(distribution, 0, (m, k), dtype)
    rhs = sample(distribution, 1, (g, k, n), dtype)
    bias = sample(distribution, 2, (g, n), dtype)
    check(
        tokumx.ragged_dot,
        lhs,
        rhs,
        np.array(SIZES[sizes], np.int32),
        bias=bias,
        implementation="xla_blocked",
    ).raise_if_wrong()


@pytest.mark.parametrize(("sizes", "dtype", "distribution"), CASES)
def test_ragged_contracting_dot_error_is_within_budget(sizes, dtype, distribution):
    check(
        tokumx.ragged_contracting_dot,
        sample(distribution, 0, (300, 33), dtype),
        sample(distribution, 1, (300, 47), dtype),
        np.array(SIZES[sizes], np.int32),
        implementation="xla_blocked",
    ).raise_if_wrong()


@pytest.mark.parametrize("dot_dtype", ["float32", "input"])
@pytest.mark.parametrize("blocks", [(7,), (64, 16), (512, 100)], ids=str)
def test_ragged_dot_tails_of_large_matrices_are_exact_enough(blocks, dot_dtype):
    """No size is a multiple of any tile."""
    config = Config(blocks=blocks, dot_dtype=dot_dtype)
    check(
        tokumx.ragged_dot,
        sample("normal", 0, (1023, 517), "bfloat16"),
        sample("normal", 1, (3, 517, 259), "bfloat16"),
        np.array([511, 1, 500], np.int32),
        implementation="xla_blocked",
        config=tokumx.Configs(forward=config, backward=config),
    ).raise_if_wrong()


@pytest.mark.parametrize("implementation", ["xla", "xla_blocked"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_ragged_dot_result_dtype_is_the_preferred_one(dtype, implementation):
    with jax.enable_x64(True):
        lhs, rhs = jnp.ones((8, 4), dtype), jnp.ones((2, 4, 3), dtype)
        how = {"implementation": implementation}
        sizes = jnp.array([3, 5], jnp.int32)
        assert tokumx.ragged_dot(lhs, rhs, sizes, **how).dtype == dtype
        how["preferred_element_type"] = jnp.float32
        assert tokumx.ragged_dot(lhs, rhs, sizes, **how).dtype == "float32"
        out = tokumx.ragged_contracting_dot(lhs, lhs, sizes, **how)
        assert out.dtype == "float32"
