"""The README's support table is what the code says today."""

from pathlib import Path

import pytest

from tokumx.cli.support import BEGIN, END, support_table, with_table

README = Path(__file__).parents[3] / "README.md"


def test_support_table_in_the_readme_is_current():
    text = README.read_text()
    assert with_table(text, support_table()) == text, (
        "run: tokumx support --write README.md"
    )


def test_support_table_claims_no_run_on_a_chip_that_no_one_ran():
    for line in support_table().splitlines()[2:]:
        cells = [c.strip() for c in line.strip("|").split("|")]
        assert "runs" not in cells[5:]


def test_support_table_needs_its_markers():
    with pytest.raises(ValueError) as error:
        with_table("no markers", "table")
    assert str(error.value) == (
        f"support: the file must hold {BEGIN} and {END}, in order."
    )
