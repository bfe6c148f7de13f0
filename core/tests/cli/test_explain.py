"""The command line, through its own entry point."""

import json

import pytest
from typer.testing import CliRunner

from tokumx.cli.app import app

pytestmark = pytest.mark.usefixtures("without_native")

ARRAYS = [f"{n}=f32[1,2048,8,64]" for n in ("query", "key", "value")]


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_explain_prints_the_decision():
    result = run("explain", "dot_product_attention", *ARRAYS, "is_causal=True")
    assert result.exit_code == 0
    assert "implementation  xla_blocked" in result.output
    assert "not xla_decode  query length must be <= 16, got 2048" in result.output


def test_explain_prints_json():
    result = run("explain", "dot_product_attention", *ARRAYS, "--json")
    (entry,) = json.loads(result.output)
    assert entry["implementation"] == "xla_blocked"


def test_explain_decides_for_another_device():
    result = run(
        "explain", "dot_product_attention", *ARRAYS, "--device", "gpu:NVIDIA H200"
    )
    assert "NVIDIA H200 (gpu)" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["attention", "query=f32[1]"],
            "error: op must be among dot_product_attention",
        ),
        (
            ["dot_product_attention", "quer=f32[1]"],
            "error: dot_product_attention: arguments are NAME=VALUE with a name among "
            "query, key,",
        ),
        (
            ["dot_product_attention", "query=q32[1]"],
            "error: ArraySpec: expected a dtype and a shape such as f32[2,128,8,64]; "
            "got 'q32[1]'.",
        ),
        (
            ["dot_product_attention", *ARRAYS, "--device", "H200"],
            "error: --device must be cpu:KIND, gpu:KIND or tpu:KIND; got 'H200'.",
        ),
        (
            ["dot_product_attention", *ARRAYS, "logits_soft_cap=-1"],
            "error: dot_product_attention: logits_soft_cap must be > 0; got -1.",
        ),
        (
            ["dot_product_attention", *ARRAYS, "implementation=xla_decode"],
            "error: dot_product_attention: no requested implementation can run",
        ),
    ],
)
def test_explain_bad_input_is_one_line_and_exit_code_2(arguments, message):
    result = run("explain", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_help_has_an_example():
    result = run("explain", "--help")
    assert result.exit_code == 0
    assert "tokumx explain dot_product_attention query=f32[1,2048,8,64]" in (
        result.output.replace("\n ", "\n")
    )


def test_version():
    assert run("--version").output.startswith("tokumx ")
