"""The torch worker: the same attention, over a pipe and files."""

import ast
import importlib.util
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tokumx.bench.attention import attention_case
from tokumx.bench.case import InTorch
from tokumx.bench.steps import make_cotangent, step_function
from tokumx.bench.torch_process import (
    SCRIPT,
    TorchError,
    torch_process,
    torch_python,
)
from tokumx.ops.attention.shapes import AttentionShape

OPTIONS = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": (5, 0)},
    "band": {"window": (3, 2)},
    "grouped": {"is_causal": True, "k": 2},
    "one_query": {"t": 1},
}

needs_torch = pytest.mark.skipif(
    shutil.which(torch_python() or "") is None,
    reason="no Python with torch: set TORCH_PYTHON",
)


@pytest.fixture(scope="module")
def worker():
    with torch_process(True, 1) as process:
        yield process


def small_case(dtype="float32", t=17, k=4, **options):
    shape = AttentionShape(
        "small", "none", "prefill", 2, t, 17, 4, k, 8, dtype, **options
    )
    return attention_case(shape, torch_bf16=True)


def load(worker, case):
    arrays = case.make_arrays()
    cotangent = make_cotangent(case, arrays)
    (contestant,) = (c for c in case.contestants() if isinstance(c, InTorch))
    worker.load(contestant, arrays, cotangent, case.differentiable)
    return arrays, cotangent


@needs_torch
@pytest.mark.parametrize("options", OPTIONS)
def test_worker_output_and_gradients_are_those_of_the_reference(worker, options):
    case = small_case(**OPTIONS[options])
    operands = load(worker, case)
    expected = step_function(case.reference, case, "forward_backward")(*operands)
    results = worker.results("forward_backward")
    assert set(results) == {"out", "d_query", "d_key", "d_value"}
    for name, x in results.items():
        np.testing.assert_allclose(x, expected[name], atol=5e-6, err_msg=name)
    assert set(worker.results("forward")) == {"out"}


@needs_torch
def test_worker_carries_bfloat16_bit_for_bit(worker):
    case = small_case("bfloat16")
    arrays, _ = load(worker, case)
    out = worker.results("forward")["out"]
    assert out.dtype == jnp.bfloat16
    expected = jax.device_get(case.reference(arrays)).astype(np.float32)
    np.testing.assert_allclose(out.astype(np.float32), expected, atol=0.02)


@needs_torch
def test_worker_reports_seconds_and_errors_and_lives_on(worker):
    case = small_case()
    arrays, cotangent = load(worker, case)
    assert worker.timed("forward").seconds(2) > 0
    with pytest.raises(TorchError, match="KeyError: 'nothing'"):
        worker.load(InTorch("torch", "nothing", {}), arrays, cotangent, ())
    assert worker.timed("forward").seconds(1) > 0


def test_worker_imports_neither_tokumx_nor_jax():
    imported = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).split(".")[0])
    assert imported == {"json", "os", "sys", "time", "numpy", "torch"}


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/nonexistent/python", "TORCH_PYTHON=/nonexistent/python is no program"),
        ("false", "false: the worker ended: exit status 1"),
    ],
)
def test_torch_that_cannot_start_is_absent_with_the_reason(python, reason, monkeypatch):
    monkeypatch.setenv("TORCH_PYTHON", python)
    with torch_process(True, 1) as torch:
        assert torch.reason == reason


def test_torch_python_defaults_to_this_one_if_it_has_torch(monkeypatch):
    monkeypatch.delenv("TORCH_PYTHON", raising=False)
    has_torch = importlib.util.find_spec("torch") is not None
    assert torch_python() == (sys.executable if has_torch else None)
