"""The demo, at sizes that take seconds."""

from types import SimpleNamespace

import corpus
import demo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import report
import training
from model import Shape
from rich.console import Console

import tokumx
from tokumx import native

# Longer than the 256 tokens up to which the plain product over all keys wins.
SHAPE = Shape(vocab_size=300, seq_len=320, layers=2, features=128)
TEXT_BYTES = 200_000
IS_BUILT = native.library() is not None


@pytest.fixture(scope="module")
def text():
    documents = corpus.standard_library(TEXT_BYTES)
    tokenizer = corpus.train_tokenizer(documents, SHAPE.vocab_size)
    tokens = corpus.encode(tokenizer, documents)
    return SimpleNamespace(documents=documents, tokenizer=tokenizer, tokens=tokens)


@pytest.fixture(scope="module")
def trained(text):
    plain, fast, replacement = training.prepare(SHAPE, 1, 0)
    windows = corpus.batches(text.tokens, 1, SHAPE.seq_len, 12, 0)
    training.train((plain, fast), windows)
    return SimpleNamespace(
        plain=plain, fast=fast, replacement=replacement, windows=windows
    )


def test_corpus_is_the_same_each_time_and_can_be_read_back(text):
    assert corpus.standard_library(TEXT_BYTES) == text.documents
    again = corpus.train_tokenizer(text.documents, SHAPE.vocab_size)
    np.testing.assert_array_equal(corpus.encode(again, text.documents), text.tokens)
    assert text.tokenizer.get_vocab_size() == SHAPE.vocab_size
    assert text.tokenizer.decode(text.tokens.tolist()) == "".join(text.documents)


def test_corpus_batches_are_windows_of_the_text():
    tokens = np.arange(100, dtype=np.int32)
    windows = corpus.batches(tokens, batch=2, seq_len=8, steps=3, seed=5)
    assert windows.shape == (3, 2, 9)
    assert (np.diff(windows) == 1).all()
    np.testing.assert_array_equal(windows, corpus.batches(tokens, 2, 8, 3, 5))
    assert corpus.batches(tokens, 1, 99, 1, 0).tolist() == [[list(range(100))]]


def test_corpus_text_shorter_than_a_window_raises():
    with pytest.raises(ValueError) as caught:
        corpus.batches(np.arange(100), batch=1, seq_len=100, steps=1, seed=0)
    assert str(caught.value) == (
        "demo: seq_len must be < the 100 tokens of the text; got 100. "
        "Pass a smaller --seq-len."
    )


def test_training_with_tokumx_runs_its_fast_attention(trained):
    window = jax.ShapeDtypeStruct(trained.windows.shape[1:], jnp.int32)
    calls = tokumx.explain(trained.fast.step, trained.fast.state, window).calls
    fastest = "cpu_native" if IS_BUILT else "xla_blocked"
    assert [call.decision.implementation for call in calls] == [fastest]
    assert calls[0].directions == {"forward", "backward"}
    assert [row.path for row in trained.replacement.rows] == [
        "blocks.0.attention",
        "blocks.1.attention",
    ]
    assert all(row.is_switched for row in trained.replacement.rows)


def test_training_without_tokumx_does_not_call_it(trained):
    window = jax.ShapeDtypeStruct(trained.windows.shape[1:], jnp.int32)
    assert tokumx.explain(trained.plain.step, trained.plain.state, window).calls == ()


def test_training_traces_agree_and_fall(trained):
    # One rounding of a loss near 8 is 1e-6.
    assert report.largest_difference(trained.plain, trained.fast) < 1e-5
    for run in (trained.plain, trained.fast):
        assert len(run.losses) == len(run.seconds) == 12
        assert run.losses[-1] < run.losses[0] - 0.5


def test_training_with_tokumx_needs_less_memory(trained):
    assert trained.fast.temp_bytes < trained.plain.temp_bytes


def test_training_warm_up_leaves_the_state_alone(trained):
    before = training._copy(trained.fast.state)
    trained.fast.warm_up(jnp.asarray(trained.windows[0]))
    jax.tree.map(np.testing.assert_array_equal, before, trained.fast.state)


def test_demo_shows_every_part_and_writes_the_plot(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "TEXT_BYTES", TEXT_BYTES)
    plot = tmp_path / "new" / "demo.png"
    sizes = {"steps": 8, "seq-len": 64, "layers": 1, "features": 64, "vocab": 300}
    options = [f"--{name}={size}" for name, size in sizes.items()]
    assert demo.main([*options, f"--out={plot}"]) == 0
    output = capsys.readouterr().out
    for part in (
        "text: ",
        "tokumx_flax.replace: 1 of 1 attention modules switched",
        "8/8",
        "largest loss difference",
        "temporary memory",
        f"  implementation  {'cpu_native' if IS_BUILT else 'xla'}: ",
        f"plot: {plot}",
    ):
        assert part in output
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("plain", "fast", "code", "output"),
    [
        ([8.0, 7.0], [8.0, 7.0], 0, ""),
        (
            [8.0, 7.0],
            [8.0, 7.5],
            1,
            "demo: losses must agree to 0.0001; they differ by 0.5.\n",
        ),
        (
            [8.0, 7.0],
            [8.0, float("nan")],
            1,
            "demo: losses must agree to 0.0001; they differ by nan.\n",
        ),
        (
            [8.0, 8.5],
            [8.0, 8.5],
            1,
            "demo: losses must fall; raise --steps.\n",
        ),
    ],
    ids=["good", "apart", "nan", "rising"],
)
def test_demo_verdict(plain, fast, code, output, capsys):
    runs = (SimpleNamespace(losses=losses) for losses in (plain, fast))
    assert demo.verdict(*runs, Console()) == code
    assert capsys.readouterr().out == output


def test_demo_help_names_the_options(capsys):
    with pytest.raises(SystemExit) as caught:
        demo.main(["--help"])
    assert caught.value.code == 0
    output = capsys.readouterr().out
    assert all(option in output for option in ("--steps", "--seq-len", "--out"))
