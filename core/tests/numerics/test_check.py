"""A check that cannot fail is a defect: planted errors must be found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.numerics import Budget, budget_for, check, compare, sample

EXACT = Budget(2.0, 4.0, "")
TRUTH = np.linspace(-1, 1, 100)
NAIVE = TRUTH.astype(np.float32)


def verdict(actual, naive=NAIVE, truth=TRUTH):
    return compare("x", actual, naive, truth, EXACT)


def test_compare_accepts_the_naive_result():
    assert verdict(NAIVE).ok


def test_compare_refuses_an_error_beyond_the_budget():
    wrong = NAIVE.copy()
    wrong[3] += 1e-5
    found = verdict(wrong)
    assert not found.ok
    assert str(found) == (
        "x float32: error 1.00e-05, naive 2.95e-08, allowed 5.36e-07: WRONG"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_compare_refuses_a_value_that_is_not_finite(bad):
    wrong = NAIVE.copy()
    wrong[3] = bad
    found = verdict(wrong)
    assert not found.ok
    assert found.problem == "not finite where the truth is"


def test_compare_wants_infinities_where_the_truth_has_them():
    truth = np.append(TRUTH, -np.inf)
    assert verdict(truth.astype(np.float32), truth.astype(np.float32), truth).ok
    finite = np.append(NAIVE, np.float32(0))
    assert verdict(finite, finite, truth).problem == "where the truth is not finite"


def test_compare_refuses_another_shape_or_dtype():
    assert verdict(NAIVE[:50]).problem.startswith("shape (50,)")
    half = NAIVE.astype(np.float16)
    assert verdict(half).problem == "dtype float16, naive float32"


def test_compare_measures_small_results_against_their_own_size():
    small = NAIVE * np.float32(1e-20)
    assert not verdict(small + np.float32(1e-25), small, TRUTH * 1e-20).ok


def attention_with(error):
    """dot_product_attention with a planted error outside the reference."""

    def fn(q, k, v, *, implementation=None, config=None, **kwargs):
        out = tokumx.dot_product_attention(
            q, k, v, implementation="xla" if implementation == "xla" else None, **kwargs
        )
        return out if implementation == "xla" else error(out)

    fn.__name__ = "dot_product_attention"
    return fn


OPERANDS = [sample("normal", i, (1, 32, 2, 16)) for i in range(3)]


def test_check_accepts_a_right_kernel():
    assert check(attention_with(lambda out: out), *OPERANDS).ok


def test_check_finds_a_wrong_output():
    report = check(attention_with(lambda out: out.at[0, 3].add(1e-4)), *OPERANDS)
    assert [c.name for c in report.comparisons if not c.ok] == [
        "out",
        "out, not differentiated",
    ]
    with pytest.raises(AssertionError, match="WRONG"):
        report.raise_if_wrong()


def test_check_finds_a_wrong_gradient_behind_a_right_output():
    def error(out):
        return out + 1e-3 * (out - jax.lax.stop_gradient(out))

    report = check(attention_with(error), *OPERANDS)
    assert [c.name for c in report.comparisons if not c.ok] == [
        "d_arg0",
        "d_arg1",
        "d_arg2",
    ]


def test_check_finds_memory_that_was_not_written():
    report = check(
        attention_with(lambda out: out.at[0, 3].set(jnp.nan)),
        *OPERANDS,
        gradients=False,
    )
    assert not report.ok


def test_budget_of_an_unlisted_op_is_the_strict_default():
    assert budget_for("new_op", "float32", "forward").factor == 2.0


def test_distribution_must_exist():
    with pytest.raises(ValueError) as error:
        sample("gaussian", 0, (3,))
    assert str(error.value) == (
        "numerics: distribution must be among normal, heavy_tailed, activation, "
        "zeros, huge; got 'gaussian'."
    )
