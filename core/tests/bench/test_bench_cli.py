"""The command line, end to end on the smallest shape."""

import importlib.util
import shutil

import jax
import pytest
from typer.testing import CliRunner

from tokumx.bench import attention, paged
from tokumx.bench.cli import make_app
from tokumx.bench.records import Report
from tokumx.bench.torch_process import torch_python

TINY = ["--only", "short-T64-h64", "--rounds", "2", "--budget-s", "0"]


def invoke(*args, make=attention.attention_benchmark):
    return CliRunner().invoke(make_app(make), [str(a) for a in args])


def only_report(folder) -> Report:
    (path,) = folder.glob("attention-*.json")
    return Report.load(path)


@pytest.mark.parametrize("make", [attention.attention_benchmark, paged.paged_benchmark])
def test_help_lists_the_options(make):
    result = invoke("--help", make=make)
    assert result.exit_code == 0
    for option in ("--suite", "--only", "--threads", "--no-torch", "--json"):
        assert option in result.output


def test_attention_bench_writes_record_table_and_plot(tmp_path):
    result = invoke(*TINY, "--no-torch", "--json", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    report = only_report(tmp_path)
    assert Report.model_validate_json(result.stdout) == report
    assert [m.work for m in report.measurements] == ["forward", "forward_backward"]
    for m in report.measurements:
        statuses = {e.name: e.status for e in m.entries}
        assert statuses["tokumx"] == statuses["einsum"] == statuses["jax.nn"] == "timed"
        assert statuses["torch"] == "absent"
        assert m.entries[0].decision
        assert m.entries[0].temp_bytes > 0
    assert report.environment.versions["jax"] == jax.__version__
    assert "torch absent: left out by --no-torch. Cases: short-T64" in result.stderr
    (text,) = tmp_path.glob("attention-*.md")
    assert "short-T64-h64" in text.read_text()
    has_plot = importlib.util.find_spec("matplotlib") is not None
    assert bool(list(tmp_path.glob("attention-*.png"))) == has_plot
    assert ("no plot" in result.stderr) != has_plot


@pytest.mark.skipif(
    shutil.which(torch_python() or "") is None,
    reason="no Python with torch: set TORCH_PYTHON",
)
def test_attention_bench_compares_with_torch(tmp_path):
    result = invoke(*TINY, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    report = only_report(tmp_path)
    for m in report.measurements:
        torch = m.entry("torch")
        assert torch.status == "timed", torch.reason
        assert torch.error <= torch.allowed
        assert torch.ratio > 0
    assert report.environment.versions["torch"][0].isdigit()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--suite", "huge"], "--suite must be among quick, full; got 'huge'."),
        (["--only", "nothing*"], "no case is left. There are: causal-T512-h64,"),
        (["--threads", "1000"], "cores at hand, on Linux; got 1000."),
        (["--direction", "up"], "must be among forward, forward_backward; got 'up'."),
    ],
)
def test_wrong_arguments_are_explained(args, message):
    result = invoke(*args)
    assert result.exit_code == 2
    shown = " ".join(result.output.replace("│", " ").split())
    assert message in shown
