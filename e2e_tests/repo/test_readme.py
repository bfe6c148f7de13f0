"""The root README's Python code runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
)


def test_readme_has_code():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.splitlines()[0])
def test_readme_code_runs(block):
    exec(compile(block, str(README), "exec"), {})
