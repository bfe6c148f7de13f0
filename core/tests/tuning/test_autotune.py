"""The search: exhaustive, judged, never worse than the default."""

import dataclasses
import multiprocessing
import os
import signal
import time

import jax
import jax.numpy as jnp
import pytest

import tokumx
from tokumx import native
from tokumx.contract import OpSpec
from tokumx.ops import OPS
from tokumx.ops.attention import xla_blocked

QUICK = tokumx.TuneSettings(rounds=2, min_sample_s=1e-4, budget_s=5)
X = jax.ShapeDtypeStruct((1, 96, 2, 16), jnp.float32)
C = xla_blocked.Config


def step(x):
    return tokumx.dot_product_attention(
        x, x, x, is_causal=True, implementation="xla_blocked"
    ).sum()


@pytest.fixture
def op_with(monkeypatch):
    """Replaces xla_blocked's functions in the catalogue the tuner reads."""

    def install(**changes):
        op = OPS["dot_product_attention"]
        implementations = tuple(
            dataclasses.replace(i, **changes) if i.name == "xla_blocked" else i
            for i in op.implementations
        )
        fields = {f.name: getattr(op, f.name) for f in dataclasses.fields(op) if f.init}
        changed = OpSpec(**{**fields, "implementations": implementations})
        monkeypatch.setitem(OPS, op.name, changed)

    return install


def only(names, **changes):
    return QUICK.model_copy(update={"implementations": names, **changes})


def test_autotune_tries_the_whole_space_of_each_direction():
    result = tokumx.autotune(jax.grad(step), X, settings=only(("xla_blocked",)))
    device = result.trials and tokumx.explain(step, X).calls[0].decision.device
    call = tokumx.explain(step, X).calls[0].decision.call
    for direction in ("forward", "backward"):
        tried = {t.config for t in result.trials if t.direction == direction}
        assert tried == {
            xla_blocked.heuristic_config(call, device, direction),
            *xla_blocked.search_space(call, device, direction),
        }
        assert [t.outcome for t in result.trials if t.direction == direction].count(
            "won"
        ) == 1
    assert {(r.implementation, r.direction) for r in result.records} == {
        ("xla_blocked", "forward"),
        ("xla_blocked", "backward"),
    }


def test_autotune_tunes_every_implementation_that_can_run():
    result = tokumx.autotune(step, X, settings=QUICK)
    expected = {"xla", "xla_blocked"} | ({"cpu_native"} if native.library() else set())
    assert {r.implementation for r in result.records} == expected
    assert all(r.direction == "forward" for r in result.records)


def test_autotune_winner_is_never_slower_than_the_default():
    result = tokumx.autotune(step, X, settings=QUICK)
    for r in result.records:
        assert r.time_us <= r.default_time_us


def test_autotune_result_in_a_with_block_is_what_runs():
    result = tokumx.autotune(step, X, settings=only(("xla_blocked",)))
    (record,) = result.records
    with result:
        decision = tokumx.explain(step, X).calls[0].decision
    assert decision.configs.forward == C(**record.config)
    assert decision.source("forward") == "tuned: active result, exact shape"


def test_autotune_finds_nothing_and_says_so():
    result = tokumx.autotune(jnp.sin, X, settings=QUICK)
    assert result.records == ()
    assert str(result) == "nothing was tuned"


def test_wrong_numbers_cannot_win_even_if_fastest(op_with):
    def forward(arrays, call, config):
        if config.block_q == 7:  # does nothing, fast
            zeros = jnp.zeros(arrays["query"].shape)
            rows = jnp.zeros(zeros.shape[:3])
            rest = dict.fromkeys(("lse", "row_max", "row_sum"), rows)
            return {"out": zeros, "out_wide": zeros, **rest}
        return xla_blocked.forward(arrays, call, config)

    wrong, right = C(block_q=7, block_kv=64), C(block_q=64, block_kv=64)
    op_with(forward=forward, search_space=lambda *_: [wrong, right])
    result = tokumx.autotune(step, X, settings=only(("xla_blocked",)))
    (trial,) = (t for t in result.trials if t.config == wrong)
    assert trial.outcome.startswith("wrong numbers: ")
    assert trial.time_us is None
    assert result.records[0].config["block_q"] != 7


def test_failing_candidate_is_recorded_and_not_fatal(op_with):
    def forward(arrays, call, config):
        if config.block_q == 7:
            raise RuntimeError("out of on-chip memory")
        return xla_blocked.forward(arrays, call, config)

    op_with(
        forward=forward,
        search_space=lambda *_: [C(block_q=7, block_kv=64), C(block_q=64, block_kv=64)],
    )
    result = tokumx.autotune(step, X, settings=only(("xla_blocked",)))
    (trial,) = (t for t in result.trials if t.config.block_q == 7)
    assert trial.outcome == "failed: RuntimeError: out of on-chip memory"
    assert len(result.records) == 1


def test_reference_that_needs_too_much_memory_is_not_the_judge(op_with):
    settings = only(("xla_blocked",), max_reference_bytes=0)
    op_with(search_space=lambda *_: [C(block_q=64, block_kv=64)])
    result = tokumx.autotune(step, X, settings=settings)
    assert len(result.records) == 1


def test_autotune_shows_progress_when_asked(capsys):
    settings = only(("xla",), progress=True)
    tokumx.autotune(step, X, settings=settings)
    assert "xla forward" in capsys.readouterr().out


def _install_many(folder, start, count):
    os.environ["TOKUMX_CACHE_DIR"] = folder
    from tokumx.dispatch.tuned import TunedRecord
    from tokumx.tuning import install

    for i in range(start, start + count):
        install([TunedRecord(**_fields(f"device {i}"))])


def _fields(device):
    call = tokumx.explain(step, X).calls[0].decision.call
    return {
        "call": call.to_json(),
        "device": device,
        "implementation": "xla",
        "direction": "forward",
        "config": {},
        "time_us": 1.0,
        "spread_us": 0.0,
        "default_time_us": 1.0,
        "jax_version": jax.__version__,
        "tokumx_version": "0.1.0",
    }


def _records(folder):
    import contextlib
    import sqlite3

    with contextlib.closing(sqlite3.connect(folder / "tuned.sqlite3")) as db:
        return {row[0] for row in db.execute("SELECT identity FROM tuned")}


@pytest.mark.slow
def test_two_processes_install_at_once_and_nothing_is_lost(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=_install_many, args=(str(tmp_path), start, 20))
        for start in (0, 100)
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert [w.exitcode for w in workers] == [0, 0]
    assert len(_records(tmp_path)) == 40


@pytest.mark.slow
def test_killed_writer_loses_nothing_that_was_installed(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    writer = spawn.Process(target=_install_many, args=(str(tmp_path), 0, 100_000))
    writer.start()
    while not (tmp_path / "tuned.sqlite3").exists() or not _safe_count(tmp_path):
        time.sleep(0.05)
    before = _safe_count(tmp_path)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert len(_records(tmp_path)) >= before
    _install_many(str(tmp_path), 10**6, 1)  # and it can be written again
    assert len(_records(tmp_path)) >= before + 1


def _safe_count(folder):
    import sqlite3

    try:
        return len(_records(folder))
    except sqlite3.OperationalError:  # the table is being made
        return 0
