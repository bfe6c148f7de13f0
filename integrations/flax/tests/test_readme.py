"""The code in README.md runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(block):
    exec(compile(block, str(README), "exec"), {})


def test_readme_shows_both_uses():
    assert len(BLOCKS) == 2
