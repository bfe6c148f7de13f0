"""replace: what it switches, what it reports, and undoing it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import tokumx_flax
from tokumx_flax import dot_product_attention, replace


def attention(**options):
    options = {"decode": False, "rngs": nnx.Rngs(0)} | options
    return nnx.MultiHeadAttention(2, 8, **options)


def custom(query, key, value, **options):
    return nnx.dot_product_attention(query, key, value, **options)


class Mixed(nnx.Module):
    """Attention in every kind of place."""

    def __init__(self):
        self.first = attention()
        self.shared = self.first
        self.layers = nnx.List([attention(), nnx.Dict(inner=attention())])
        self.plain = nnx.data({"a": [attention(), (attention(),)]})
        self.custom = attention(attention_fn=custom)
        self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    @property
    def attentions(self):
        return [m for _, m in nnx.iter_modules(self) if hasattr(m, "attention_fn")]


def functions(model):
    return [module.attention_fn for module in model.attentions]


def test_replace_switches_every_nested_module_and_undo_restores():
    model = Mixed()
    before = functions(model)
    report = replace(model)
    assert model.shared is model.first
    assert [fn is dot_product_attention for fn in functions(model)] == [
        fn is nnx.dot_product_attention for fn in before
    ]
    assert sum(row.is_switched for row in report.rows) == 5
    report.undo()
    assert [a is b for a, b in zip(functions(model), before, strict=True)] == [True] * 6
    report.undo()
    assert functions(model) == before


def test_replace_report_prints_as_a_table():
    report = replace(Mixed())
    assert str(report) == repr(report)
    now = "now tokumx_flax.dot_product_attention"
    was = "nnx.dot_product_attention"
    name = f"{custom.__module__}.custom"
    width = max(len(name), len(was))
    assert str(report).splitlines() == [
        "tokumx_flax.replace: 5 of 6 attention modules switched",
        f"path            {'was':<{width}}  outcome",
        f"custom          {name:<{width}}  left: custom attention_fn",
        f"first           {was:<{width}}  {now}",
        f"layers.0        {was:<{width}}  {now}",
        f"layers.1.inner  {was:<{width}}  {now}",
        f"plain.a.0       {was:<{width}}  {now}",
        f"plain.a.1.0     {was:<{width}}  {now}",
    ]


def test_replace_context_manager_undoes_on_an_error():
    model = Mixed()
    before = functions(model)
    seen = []

    def fail():
        with replace(model) as report:
            seen.extend([functions(model), len(report.rows)])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen[0] != before
    assert seen[1] == 6
    assert functions(model) == before


def test_replace_twice_changes_nothing_and_its_undo_neither():
    model = Mixed()
    before = functions(model)
    first = replace(model)
    between = functions(model)
    second = replace(model, implementation="xla")
    outcomes = {row.path: row.outcome for row in second.rows}
    assert outcomes.pop("custom") == "left: custom attention_fn"
    assert set(outcomes.values()) == {"left: already tokumx"}
    second.undo()
    assert functions(model) == between
    first.undo()
    assert functions(model) == before


def test_replace_undo_keeps_a_function_set_since():
    model = Mixed()
    report = replace(model)
    model.first.attention_fn = custom
    report.undo()
    assert model.first.attention_fn is custom
    assert model.layers[0].attention_fn is nnx.dot_product_attention


def test_replace_with_an_implementation_gives_equal_graphs():
    pair = Mixed(), Mixed()
    for model in pair:
        report = replace(model, implementation=["xla_blocked", "xla"])
    fn = pair[0].first.attention_fn
    assert fn is pair[1].first.attention_fn
    assert fn.keywords == {"implementation": ("xla_blocked", "xla")}
    graphs = [nnx.graphdef(model) for model in pair]
    assert graphs[0] == graphs[1]
    assert hash(graphs[0]) == hash(graphs[1])
    assert report.rows[1].outcome == (
        "now partial(tokumx_flax.dot_product_attention, "
        "implementation=('xla_blocked', 'xla'))"
    )


def test_replace_implementation_is_the_one_that_runs():
    x = jnp.ones((1, 5, 8))
    for name, other in (("xla_blocked", "xla"), ("xla", "xla_blocked")):
        texts = []
        for chosen in (name, other):
            model = attention()
            replace(model, implementation=chosen)
            texts.append(str(jax.make_jaxpr(lambda x, m=model: m(x))(x)))
        assert texts[0] != texts[1]


def test_replace_on_the_attention_itself():
    model = attention()
    report = replace(model)
    assert [row.path for row in report.rows] == ["(the model)"]
    assert model.attention_fn is dot_product_attention


def test_replace_subclasses_are_switched():
    class Own(nnx.MultiHeadAttention):
        pass

    model = Own(2, 8, decode=False, rngs=nnx.Rngs(0))
    replace(model)
    assert model.attention_fn is dot_product_attention


def test_replace_reports_modules_that_are_not_flax_attention():
    class Own(nnx.Module):
        def __init__(self):
            self.attention_fn = nnx.dot_product_attention

    model = Own()
    assert str(replace(model)) == (
        "tokumx_flax.replace: 0 of 1 attention modules switched\n"
        "path         was                        outcome\n"
        "(the model)  nnx.dot_product_attention  "
        "left: Own is not an nnx.MultiHeadAttention"
    )
    assert model.attention_fn is nnx.dot_product_attention


def test_replace_reports_what_still_runs_flax():
    precise = replace(attention(precision="highest"))
    assert precise.rows[0].outcome == (
        "now tokumx_flax.dot_product_attention; but Flax's function runs: "
        "precision=highest"
    )
    shared = replace(attention(dropout_rate=0.1))
    assert shared.rows[0].outcome == (
        "now tokumx_flax.dot_product_attention; but Flax's function runs with "
        "dropout on: broadcast_dropout=True"
    )
    own = replace(attention(dropout_rate=0.1, broadcast_dropout=False))
    assert own.rows[0].outcome == "now tokumx_flax.dot_product_attention"


def test_replace_describes_partials():
    fn = functools.partial(nnx.dot_product_attention, is_causal=True)
    report = replace(attention(attention_fn=fn))
    assert report.rows[0].was == "partial(nnx.dot_product_attention, is_causal=True)"
    assert report.rows[0].outcome == "left: custom attention_fn"


def test_replace_without_attention_says_so():
    report = replace(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    assert str(report) == (
        "tokumx_flax.replace: Linear has no attention module; nothing changed."
    )
    report.undo()


def test_replace_keeps_outputs_and_parameters_through_undo():
    model, x = attention(), jax.random.normal(jax.random.key(0), (1, 5, 8))
    state = nnx.state(model)
    plain = model(x)
    with replace(model):
        np.testing.assert_allclose(model(x), plain, atol=1e-6)
        jax.tree.map(np.testing.assert_array_equal, state, nnx.state(model))
    np.testing.assert_array_equal(model(x), plain)


def test_replace_a_linen_module_raises():
    with pytest.raises(TypeError) as caught:
        replace(linen.MultiHeadAttention(2))
    assert str(caught.value) == (
        "tokumx_flax.replace: model must be an nnx.Module; got the linen module "
        "MultiHeadAttention, which cannot be changed in place. Pass "
        "attention_fn=tokumx_flax.dot_product_attention where it makes its attention."
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [({}, "dict"), (nnx.Linear, "the class Linear"), (None, "NoneType")],
)
def test_replace_anything_else_raises(model, name):
    with pytest.raises(TypeError) as caught:
        replace(model)
    assert str(caught.value).startswith(
        f"tokumx_flax.replace: model must be an nnx.Module; got {name}. "
    )
    assert str(caught.value).endswith(
        "Pass the module itself, before nnx.split or after nnx.merge."
    )


def test_package_exports_what_the_readme_names():
    assert sorted(tokumx_flax.__all__) == [
        "Replacement",
        "check_version",
        "dot_product_attention",
        "replace",
    ]
