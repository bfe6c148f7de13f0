"""Attention's cases: the plain form is right, peers are reported, flops counted."""

import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

from tokumx.bench.attention import attention_benchmark, attention_case
from tokumx.bench.attention_contestants import (
    einsum_attention,
    heads_major_attention,
    tokumx_attention,
)
from tokumx.bench.case import Absent, InProcess, InTorch
from tokumx.bench.cli import Choices
from tokumx.numerics import sample
from tokumx.ops.attention.shapes import SHAPES, AttentionShape

OPTIONS = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": (5, 0)},
    "band": {"window": (3, 2)},
    "right": {"window": (None, 2)},
    "cap": {"soft_cap": 2.0},
    "sinks": {"is_causal": True, "has_sinks": True},
}


def small(n=4, k=2, t=17, dtype="float32", **options):
    return AttentionShape(
        "small", "none", "prefill", 2, t, 17, n, k, 8, dtype, **options
    )


def arrays_of(shape):
    return {
        name: sample("normal", i, spec.shape, spec.dtype)
        for i, (name, spec) in enumerate(shape.array_specs.items())
    }


@pytest.mark.parametrize("plain", [einsum_attention, heads_major_attention])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_plain_attention_is_attention(plain, options, k):
    shape = small(k=k, **OPTIONS[options])
    arrays = arrays_of(shape)
    expected = tokumx_attention(arrays, shape, "xla")
    actual = plain(arrays, **shape.options)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("t", [1, 17])
def test_visible_pairs_counts_the_mask(options, t):
    shape = small(t=t, **OPTIONS[options])
    left, right = shape.window or (None, None)
    distance = np.arange(shape.s) - np.arange(shape.t)[:, None]
    visible = np.ones_like(distance, bool)
    if shape.is_causal:
        visible &= distance <= 0
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    assert shape.visible_pairs == visible.sum()


def test_shapes_are_named_by_their_key_and_fit_memory():
    for name, shape in SHAPES.items():
        assert shape.name == name
        assert shape.n % shape.k == 0
        logits_bytes = 4 * shape.b * shape.n * shape.t * shape.s
        assert logits_bytes <= 1 << 29


def test_shapes_hold_the_suite():
    for kind in ("causal", "full"):
        for h in (64, 128):
            for t in (512, 1024, 2048, 4096, 8192):
                shape = SHAPES[f"{kind}-T{t}-h{h}"]
                assert (shape.t, shape.s, shape.h) == (t, t, h)
                assert shape.is_causal == (kind == "causal")


def test_decode_shapes_are_forward_only_and_bound_by_memory():
    case = attention_case(SHAPES["decode-n8k2-h128-bf16"])
    assert case.works == ("forward",)
    assert case.bound_by == "bandwidth"
    keys_and_values = 2 * 4 * 4096 * 2 * 128 * 2
    assert keys_and_values < case.bytes_moved < keys_and_values * 1.01


def contestants_of(shape, torch_bf16=False):
    found = attention_case(shape, torch_bf16).contestants()
    return {c.name: c for c in found}


def test_contestants_put_tokumx_first():
    assert next(iter(contestants_of(small()))) == "tokumx"


def test_contestants_without_an_option_are_absent_with_the_reason():
    capped = contestants_of(small(soft_cap=2.0))
    assert capped["jax.nn"] == Absent("jax.nn", "has no soft cap")
    assert capped["torch"] == Absent("torch", "has no soft cap")
    assert isinstance(capped["einsum"], InProcess)
    sunk = contestants_of(small(has_sinks=True))
    assert sunk["tokamax"] == Absent("tokamax", "has no sinks")


def test_contestants_tokamax_takes_part_where_it_is_installed():
    tokamax = contestants_of(small())["tokamax"]
    if importlib.util.find_spec("tokamax") is None:
        assert isinstance(tokamax, Absent)
        assert tokamax.reason.startswith("not installed")
    else:
        assert isinstance(tokamax, InProcess)


def test_contestants_of_bf16_include_float32_and_leave_torch_out():
    shape = small(dtype="bfloat16")
    found = contestants_of(shape)
    assert found["tokumx f32"].input_dtype == "float32"
    assert isinstance(found["torch"], Absent)
    assert isinstance(contestants_of(shape, torch_bf16=True)["torch"], InTorch)
    assert "tokumx f32" not in contestants_of(small())


def test_quick_suite_names_cases_that_exist():
    benchmark = attention_benchmark(Choices())
    assert benchmark.quick <= {case.name for case in benchmark.cases}


def test_arrays_keep_the_shapes_dtype():
    arrays = attention_case(small(dtype="bfloat16", has_sinks=True)).make_arrays()
    assert arrays["query"].dtype == jnp.bfloat16
    assert arrays["sinks"].dtype == jnp.float32
