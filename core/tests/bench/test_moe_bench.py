"""The cases of mixture-of-experts layers: the plain forms are right."""

import shutil

import jax
import numpy as np
import pytest

from tokumx.bench.cli import Choices
from tokumx.bench.moe import MoeShape, moe_benchmark, moe_case
from tokumx.bench.moe_contestants import dense_moe, lax_moe, tokumx_moe
from tokumx.bench.steps import make_cotangent, step_function
from tokumx.bench.torch_process import torch_process, torch_python

SHAPE = MoeShape("none", t=12, e=4, k=2, d=8, f=6, dtype="float32")


def assert_close(actual, expected):
    for name, x in expected.items():
        np.testing.assert_allclose(actual[name], x, rtol=0, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def expected():
    case, arrays = moe_case(SHAPE), SHAPE.arrays()
    step = step_function(case.reference, case, "forward_backward")
    return jax.jit(step)(arrays, make_cotangent(case, arrays))


@pytest.mark.parametrize("function", [lax_moe, dense_moe, tokumx_moe])
def test_moe_contestants_compute_the_same_layer(function, expected):
    case, arrays = moe_case(SHAPE), SHAPE.arrays()
    step = step_function(lambda a: function(a, SHAPE.k), case, "forward_backward")
    assert_close(jax.jit(step)(arrays, make_cotangent(case, arrays)), expected)


@pytest.mark.skipif(
    shutil.which(torch_python() or "") is None,
    reason="no Python with torch: set TORCH_PYTHON",
)
def test_moe_torch_loop_computes_the_same_layer(expected):
    case, arrays = moe_case(SHAPE), SHAPE.arrays()
    contestant = case.contestants()[-1]
    with torch_process(True, 1) as worker:
        cotangent = make_cotangent(case, arrays)
        worker.load(contestant, arrays, cotangent, case.differentiable)
        assert_close(worker.results("forward_backward"), expected)


def test_moe_cases_have_names_of_their_own():
    cases = moe_benchmark(Choices()).cases
    assert len({case.name for case in cases}) == len(cases)
