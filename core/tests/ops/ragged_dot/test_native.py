"""The native kernels: the numerics rule on every instruction set at hand."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokumx
from tokumx import native
from tokumx.contract import current_device
from tokumx.numerics import DISTRIBUTIONS, check, sample
from tokumx.ops.ragged_dot.ragged_dot import RAGGED_DOT

DTYPES = ["float32", "bfloat16", "float16"]
# No group, few rows read the matrix where it lies, more are packed; one group spans
# more rows than a block, and the last rows belong to nobody.
SIZES = np.array([0, 3, 1, 130, 4, 0, 5, 61], np.int32)
GROUPS, ROWS = 8, 210


@pytest.fixture(autouse=True)
def _only_with_the_library(skip_unless_native):
    skip_unless_native()


def instruction_sets():
    found = native.library()
    return found.instruction_sets if found else ["none"]


def operands(distribution, dtype, k=33, n=47, rows=ROWS, groups=GROUPS):
    shapes = (rows, k), (groups, k, n), (groups, n)
    return [sample(distribution, i, x, dtype) for i, x in enumerate(shapes)]


def assert_right(lhs, rhs, bias, sizes=SIZES):
    check(
        tokumx.ragged_dot, lhs, rhs, sizes, bias=bias, implementation="cpu_native"
    ).raise_if_wrong()


def assert_contracting_right(lhs, rhs, sizes=SIZES):
    check(
        tokumx.ragged_contracting_dot, lhs, rhs, sizes, implementation="cpu_native"
    ).raise_if_wrong()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_native_is_as_right_as_plain_on_every_distribution(distribution):
    assert_right(*operands(distribution, "float32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_native_contracting_is_as_right_as_plain(dtype):
    lhs = operands("activation", dtype)[0]
    assert_contracting_right(lhs, sample("activation", 3, (ROWS, 29), dtype))


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_instruction_sets(name, dtype):
    """130 columns are whole panels and a part of one on each of them."""
    with native.use_instruction_set(name):
        assert native.instruction_set() == name
        assert_right(*operands("activation", dtype, k=70, n=130))


@pytest.mark.parametrize(("k", "n"), [(1, 1), (7, 31), (64, 96), (600, 33)])
def test_native_widths(k, n):
    """600 terms are more than one partial sum."""
    lhs, rhs, _ = operands("normal", "float32", k=k, n=n)
    assert_right(lhs, rhs, None)
    assert_contracting_right(lhs, sample("normal", 3, (ROWS, n)))


def test_native_sums_over_more_rows_than_a_partial_sum():
    sizes = np.array([0, 1100, 3], np.int32)
    lhs, rhs = sample("normal", 0, (1200, 50)), sample("normal", 1, (1200, 70))
    assert_contracting_right(lhs, rhs, sizes)
    assert_right(*operands("normal", "bfloat16", rows=1200, groups=3), sizes)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=2, max_size=6),
    spare=st.integers(0, 9),
    offset=st.integers(-3, 7),
)
def test_native_equals_portable_for_any_groups(sizes, spare, offset):
    """Also with groups of other devices; a local group may be none of them."""
    rows = max(sum(sizes) + spare, 1)
    lhs, rhs, bias = operands("normal", "float32", k=5, n=9, rows=rows, groups=2)

    def run(implementation):
        return jax.vjp(
            lambda *x: tokumx.ragged_dot(
                *x[:2],
                np.array(sizes, np.int32),
                bias=x[2],
                group_offset=offset,
                implementation=implementation,
            ),
            *(lhs, rhs, bias),
        )

    out, pull_back = run("cpu_native")
    expected, expected_pull_back = run("xla")
    np.testing.assert_allclose(out, expected, atol=1e-5)
    ct = sample("normal", 4, out.shape)
    for a, b in zip(pull_back(ct), expected_pull_back(ct), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_native_rows_of_no_group_may_hold_nan():
    lhs, rhs, bias = operands("normal", "float32")
    poisoned = jnp.asarray(lhs).at[SIZES.sum() :].set(jnp.nan)
    how = {"implementation": "cpu_native"}

    def run(lhs, rhs):
        return tokumx.ragged_dot(lhs, rhs, SIZES, bias=bias, **how)

    out, pull_back = jax.vjp(run, poisoned, rhs)
    assert (np.asarray(out)[SIZES.sum() :] == 0).all()
    for gradient in pull_back(jnp.ones_like(out)):
        assert np.isfinite(gradient).all()
    sums = tokumx.ragged_contracting_dot(poisoned, out, SIZES, **how)
    assert np.isfinite(sums).all()
    assert (np.asarray(sums)[SIZES == 0] == 0).all()


@pytest.mark.parametrize(
    "sizes", [[2**31 - 1, 5], [-7, 300], [400, -400], [-(2**31), 2**31 - 1]], ids=str
)
def test_native_wrong_sizes_never_leave_the_rows(sizes):
    """Sizes of a traced array are not checked; what is computed is undefined."""
    lhs, rhs, _ = operands("normal", "float32", rows=40, groups=2)

    @jax.jit
    def run(sizes):
        how = {"implementation": "cpu_native"}
        out, pull_back = jax.vjp(
            lambda *x: tokumx.ragged_dot(*x, sizes, **how), jnp.asarray(lhs), rhs
        )
        return out, pull_back(out)

    out, gradients = run(jnp.array(sizes, jnp.int32))
    assert out.shape == (40, 47)
    assert [x.shape for x in gradients] == [lhs.shape, rhs.shape]


def test_native_calls_at_the_same_time_do_not_disturb_each_other():
    lhs, rhs, bias = operands("normal", "float32", k=70, n=130)
    step = jax.jit(
        lambda *x: tokumx.ragged_dot(*x, SIZES, bias=bias, implementation="cpu_native")
    )
    expected = np.asarray(step(lhs, rhs))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for out in pool.map(lambda _: np.asarray(step(lhs, rhs)), range(64)):
            np.testing.assert_array_equal(out, expected)


def test_native_is_taken_by_default_and_leaves_float64_to_the_portable_kernel():
    def choice(dtype):
        call = RAGGED_DOT.examples(dtype)[0]
        return RAGGED_DOT.implementation("cpu_native").unsupported(
            call, current_device()
        )

    assert choice("bfloat16") is None
    assert choice("float64") == "dtypes must be f32, bf16 or f16, got float64"
    made = tokumx.explain(tokumx.ragged_dot, *operands("normal", "float32")[:2], SIZES)
    assert made.calls[0].decision.implementation == "cpu_native"


def test_native_memory_is_a_block_a_thread():
    """Nothing of the size of all groups' products, or of the matrices."""
    m, k, n, g = 1024, 256, 512, 16
    shapes = [(m, k), (g, k, n)]
    compiled = (
        jax.jit(
            lambda lhs, rhs, sizes: tokumx.ragged_dot(
                lhs, rhs, sizes, implementation="cpu_native"
            )
        )
        .lower(
            *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes),
            jax.ShapeDtypeStruct((g,), jnp.int32),
        )
        .compile()
    )
    a_thread = 4 * (128 * 1024 + 48 * (k + 512))
    limit = native.threads() * a_thread + 2**20
    assert compiled.memory_analysis().temp_size_in_bytes < limit
