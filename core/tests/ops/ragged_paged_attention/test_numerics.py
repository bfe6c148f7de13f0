"""Errors against float64, held to those of the plain implementation."""

import jax.numpy as jnp
import numpy as np
import pytest

from tokumx.numerics import DISTRIBUTIONS, check, sample
from tokumx.ops.ragged_paged_attention import ragged_paged_attention
from tokumx.ops.ragged_paged_attention.shapes import SHAPES

NEW_TOKENS, LENGTHS, PAGE_SIZE = (1, 130, 1, 20), (300, 140, 7, 333), 16
N, K, H = 4, 2, 64


@pytest.fixture(params=["xla_blocked", "cpu_native"])
def assert_in_budget(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()

    def run(*arguments, **keywords):
        check(
            ragged_paged_attention,
            *arguments,
            **keywords,
            implementation=request.param,
            gradients=False,
            return_residual=True,
        ).raise_if_wrong()

    return run


def operands(distribution, dtype, cache_dtype=None):
    needed = [-(-s // PAGE_SIZE) for s in LENGTHS]
    table = np.zeros((len(LENGTHS), max(needed)), np.int32)
    pages = np.random.default_rng(0).permutation(sum(needed)).astype(np.int32)
    for row, n in zip(table, needed, strict=True):
        row[:n], pages = pages[:n], pages[n:]
    shape = (sum(needed), PAGE_SIZE, K, H)
    cache_dtype = dtype if cache_dtype is None else cache_dtype
    return (
        sample(distribution, 1, (sum(NEW_TOKENS), N, H), dtype),
        sample(distribution, 2, shape, cache_dtype),
        sample(distribution, 3, shape, cache_dtype),
        np.cumsum([0, *NEW_TOKENS], dtype=np.int32),
        np.array(LENGTHS, np.int32),
        table,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_ragged_paged_attention_errors_stay_in_budget(
    distribution, dtype, assert_in_budget
):
    assert_in_budget(*operands(distribution, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cache_dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_ragged_paged_attention_errors_with_a_narrow_cache(
    cache_dtype, dtype, assert_in_budget
):
    assert_in_budget(
        *operands("normal", dtype, cache_dtype),
        key_scale=np.array([0.5, 0.25], np.float32),
        value_scale=np.float32(2),
    )


@pytest.mark.parametrize(
    "extra",
    [{"logits_soft_cap": 20.0}, {"local_window_size": (31, 0)}, {"is_causal": False}],
    ids=str,
)
def test_ragged_paged_attention_errors_with_options(extra, assert_in_budget):
    assert_in_budget(*operands("heavy_tailed", "float32"), **extra)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_ragged_paged_attention_errors_at_named_shapes(name, assert_in_budget):
    arguments, keywords = SHAPES[name].inputs(jnp.float32)
    assert_in_budget(*arguments, **keywords)
