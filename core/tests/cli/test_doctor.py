"""`tokumx doctor`."""

import json

from typer.testing import CliRunner

from tokumx.cli.app import app


def test_doctor_names_what_is_there(skip_unless_native):
    skip_unless_native()
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    findings = json.loads(result.output)
    assert findings["native kernels"].startswith(("AVX", "SSE", "NEON"))
    assert "in use, of" in findings["native kernels"]
    assert findings["device"].endswith("(cpu)")
    assert "records" in findings["tuned records"]


def test_doctor_says_what_is_missing_and_what_to_do(without_native, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "missing: native kernels are switched off here." in text
    assert "Install a C++17 compiler" in text
