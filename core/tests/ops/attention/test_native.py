"""The native kernels: the numerics rule on every instruction set at hand."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx import native
from tokumx.numerics import DISTRIBUTIONS, check, sample

DTYPES = ["float32", "bfloat16", "float16"]


@pytest.fixture(autouse=True)
def _only_with_the_library(skip_unless_native):
    skip_unless_native()


def instruction_sets():
    found = native.library()
    return found.instruction_sets if found else ["none"]


def operands(distribution, dtype, t=150, s=200, n=4, k=2, h=32, d=40, batch=2):
    shapes = (batch, t, n, h), (batch, s, k, h), (batch, s, k, d)
    return [sample(distribution, i, x, dtype) for i, x in enumerate(shapes)]


def assert_right(*args, **kwargs):
    check(
        tokumx.dot_product_attention,
        *args,
        **kwargs,
        implementation="cpu_native",
        return_residual=True,
    ).raise_if_wrong()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_native_is_as_right_as_plain_on_every_distribution(distribution, dtype):
    assert_right(*operands(distribution, dtype), is_causal=True)


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_instruction_sets(name, dtype):
    with native.use_instruction_set(name):
        assert native.instruction_set() == name
        assert_right(*operands("activation", dtype), local_window_size=(50, 7))
        assert_right(*operands("normal", dtype, t=2), **DECODES["causal"])


def segments(length):
    return np.sort(np.random.default_rng(1).integers(0, 4, (2, length)), 1).astype("i4")


RNG = np.random.default_rng(2)
FEATURES = {
    "window": {"local_window_size": (20, 10)},
    "window_left": {"local_window_size": (0, None)},
    "segments": {
        "query_segment_ids": segments(150),
        "key_value_segment_ids": segments(200),
        "is_causal": True,
    },
    "positions": {
        "query_positions": RNG.integers(0, 99, (2, 150)).astype("i4"),
        "key_value_positions": RNG.integers(0, 99, (2, 200)).astype("i4"),
        "is_causal": True,
    },
    "extreme_positions": {
        "query_positions": np.full((1, 150), 2**31 - 1, np.int32),
        "key_value_positions": np.arange(200, dtype=np.int32)[None] + (2**31 - 200),
        "local_window_size": (8, None),
        "is_causal": True,
    },
    "lengths": {
        "query_seq_lengths": np.array([150, 77], np.int32),
        "key_value_seq_lengths": np.array([0, 99], np.int32),
    },
    "offset": {"is_causal": True, "query_offset": np.array([50, -20], np.int32)},
    "soft_cap": {"logits_soft_cap": 2.0, "is_causal": True},
    "soft_cap_unscaled": {"logits_soft_cap": 2.0, "scale": 1.0},
    "negative_scale": {"scale": -0.3},
    "sinks": {"sinks": np.array([3.0, -2.0, 0.0, 9.0], np.float32)},
    "bias": {"bias": sample("normal", 9, (1, 4, 150, 200))},
    "bias_unscaled": {"bias": sample("normal", 9, (2, 1, 1, 200)), "scale": 1.0},
    "bias_by_query": {"bias": sample("normal", 9, (1, 1, 150, 1))},
    "mask": {"mask": RNG.random((2, 4, 150, 200)) < 0.1},
    "mask_by_head": {"mask": np.array([1, 0, 1, 1], bool).reshape(1, 4, 1, 1)},
    "causal_mask": {"mask": np.tri(150, 200, dtype=bool)[None, None]},
    "nothing_visible": {"mask": np.zeros((1, 1, 150, 200), bool)},
    "everything": {
        "is_causal": True,
        "query_offset": np.array([0, 20], np.int32),
        "query_segment_ids": segments(150),
        "key_value_segment_ids": segments(200),
        "logits_soft_cap": 5.0,
        "sinks": np.array([3.0, -2.0, 0.0, 9.0], np.float32),
        "bias": sample("normal", 9, (1, 4, 150, 200)),
        "mask": RNG.random((2, 1, 150, 200)) < 0.8,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("feature", FEATURES)
def test_native_gradients_with_each_feature(feature, dtype):
    assert_right(*operands("normal", dtype), **FEATURES[feature])


DECODES = {
    "causal": {"is_causal": True, "query_offset": 180},
    "window": {
        "local_window_size": (20, 10),
        "query_offset": np.array([100, 9], np.int32),
    },
    "lengths": {
        "logits_soft_cap": 2.0,
        "sinks": np.array([3.0, -2.0, 0.0, 9.0], np.float32),
        "key_value_seq_lengths": np.array([0, 133], np.int32),
    },
    "no_query": {"query_seq_lengths": np.array([0, 1], np.int32), "is_causal": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("t", [1, 2, 16, 40])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", DECODES)
def test_native_decode(t, dtype, case):
    """Two rows are dot products, up to a vector of them one panel, then more."""
    assert_right(*operands("normal", dtype, t=t), **DECODES[case])
    offset = operands("activation", dtype, t=t)
    assert_right(*offset, **DECODES[case], gradients=False)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 95, 97, 129, 257])
def test_native_odd_lengths(length):
    assert_right(*operands("normal", "float32", t=length, s=length), is_causal=True)


@pytest.mark.parametrize(
    ("h", "d"), [(1, 1), (7, 5), (64, 64), (80, 96), (192, 128), (256, 256)]
)
@pytest.mark.parametrize("t", [8, 150])
def test_native_head_dims(h, d, t):
    assert_right(*operands("activation", "bfloat16", t=t, h=h, d=d, batch=1))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (6, 2), (40, 1), (130, 1)])
def test_native_grouped_heads(n, k):
    """More heads in a group than a block has rows, among others."""
    assert_right(
        *operands("normal", "float32", n=n, k=k, t=9, batch=1),
        is_causal=True,
        mask=np.random.default_rng(0).random((1, n, 9, 200)) < 0.9,
    )


def test_native_logits_in_the_ten_thousands():
    assert_right(*(3 * x for x in operands("huge", "float32")), is_causal=True)


def test_native_calls_at_the_same_time_do_not_disturb_each_other():
    x = operands("normal", "float32", t=300, s=300)
    step = jax.jit(
        lambda *x: tokumx.dot_product_attention(*x, implementation="cpu_native")
    )
    expected = np.asarray(step(*x))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for out in pool.map(lambda _: np.asarray(step(*x)), range(64)):
            np.testing.assert_array_equal(out, expected)


def test_native_refuses_an_instruction_set_that_is_not_there():
    with (
        pytest.raises(ValueError, match="instruction set must be among"),
        native.use_instruction_set("AVX9"),
    ):
        pass


def test_native_memory_is_of_the_operands_size():
    t = 2048
    x = jax.ShapeDtypeStruct((1, t, 4, 64), jnp.float32)
    compiled = (
        jax.jit(
            lambda *x: jax.vjp(
                lambda *x: tokumx.dot_product_attention(
                    *x, is_causal=True, implementation="cpu_native"
                ),
                *x,
            )[1](x[0])
        )
        .lower(x, x, x)
        .compile()
    )
    operand = t * 4 * 64 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 12 * operand
