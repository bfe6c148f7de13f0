"""The cases of cross-entropy: every contestant computes the same loss."""

import shutil

import jax
import numpy as np
import pytest

from tokumx.bench.case import InProcess
from tokumx.bench.cli import Choices
from tokumx.bench.cross_entropy import loss_benchmark, loss_case
from tokumx.bench.cross_entropy_contestants import TORCH, loss_contestants
from tokumx.bench.steps import make_cotangent, step_function
from tokumx.bench.torch_process import torch_process, torch_python
from tokumx.ops.linear_softmax_cross_entropy.shapes import HeadShape

SHAPES = (
    HeadShape("none", 24, 8, 40),
    HeadShape("none", 24, 8, 40, "vd", 3.0),
)


def assert_close(actual, expected):
    for name, x in expected.items():
        np.testing.assert_allclose(actual[name], x, rtol=0, atol=2e-5, err_msg=name)


def expected_of(shape):
    case, arrays = loss_case(shape), shape.arrays()
    step = step_function(case.reference, case, "forward_backward")
    return case, arrays, jax.jit(step)(arrays, make_cotangent(case, arrays))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_cross_entropy_contestants_compute_the_same_loss(shape):
    case, arrays, expected = expected_of(shape)
    pytest.importorskip("tokamax")
    here = [c for c in loss_contestants(shape, True) if isinstance(c, InProcess)]
    assert len(here) == (3 if shape.logits_soft_cap else 4)
    for contestant in here:
        step = step_function(contestant.function, case, "forward_backward")
        found = jax.jit(step)(arrays, make_cotangent(case, arrays))
        assert_close(found, expected)


@pytest.mark.skipif(
    shutil.which(torch_python() or "") is None,
    reason="no Python with torch: set TORCH_PYTHON",
)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_cross_entropy_in_torch_is_the_same_loss(shape):
    case, arrays, expected = expected_of(shape)
    (contestant,) = [c for c in loss_contestants(shape, True) if c.name == TORCH]
    with torch_process(True, 1) as worker:
        cotangent = make_cotangent(case, arrays)
        worker.load(contestant, arrays, cotangent, case.differentiable)
        assert_close(worker.results("forward_backward"), expected)


def test_cross_entropy_cases_have_names_of_their_own():
    cases = loss_benchmark(Choices()).cases
    assert len({case.name for case in cases}) == len(cases)
