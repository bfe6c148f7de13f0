"""OpSpec: names of implementations and of axes."""

import jax
import pytest

from tokumx.contract import CallSpec
from tokumx.ops import OPS


def call(**shapes):
    arrays = {n: jax.ShapeDtypeStruct(s, "float32") for n, s in shapes.items()}
    return CallSpec.of("op", arrays, {})


@pytest.fixture
def spec():
    """An op over any number of leading axes; only its axes matter here."""
    fields = dict(vars(OPS["dot_product_attention"]))
    fields.pop("_by_name")
    fields |= {
        "axes": {"x": "... d", "scale": "d", "out": "... d", "rstd": "..."},
        "sharded_axes": {"...": "...", "d": "d"},
    }
    return type(OPS["dot_product_attention"])(**fields)


def test_leading_axes_are_written_out_for_the_rank_of_the_call(spec):
    axes, sharded = spec.letters(call(x=(2, 3, 4), scale=(4,)))
    assert axes == {"x": "A B d", "scale": "d", "out": "A B d", "rstd": "A B"}
    assert sharded == {"A": "A", "B": "B", "d": "d"}


def test_leading_axes_may_be_none(spec):
    axes, sharded = spec.letters(call(x=(4,), scale=(4,)))
    assert axes == {"x": "d", "scale": "d", "out": "d", "rstd": ""}
    assert sharded == {"d": "d"}


def test_every_op_names_the_axes_of_all_it_returns():
    for op in OPS.values():
        assert set(op.outputs) <= op.axes.keys(), op.name
        assert set(op.graded_outputs) <= set(op.outputs), op.name
        assert set(op.differentiable) <= op.axes.keys(), op.name
