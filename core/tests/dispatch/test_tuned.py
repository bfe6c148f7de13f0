"""Where tuned records come from, and what happens to bad ones."""

import json
import warnings

import jax
import jax.numpy as jnp
import pytest

import tokumx
from tokumx.contract import CallSpec, current_device
from tokumx.dispatch.tuned import TunedRecord, bucket_key, read_tuned_file
from tokumx.ops.attention import xla_blocked


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def decision(length=300, **kwargs):
    x = shape(1, length, 2, 16)
    found = tokumx.explain(
        tokumx.dot_product_attention,
        x,
        x,
        x,
        is_causal=True,
        implementation="xla_blocked",
        **kwargs,
    )
    return found.calls[0].decision


def record(call, block_q=48, **changes):
    fields = {
        "call": call.to_json(),
        "device": current_device().kind,
        "implementation": "xla_blocked",
        "direction": "forward",
        "config": {"block_q": block_q, "block_kv": 64},
        "time_us": 10.0,
        "spread_us": 1.0,
        "default_time_us": 12.0,
        "jax_version": jax.__version__,
        "tokumx_version": "0.1.0",
    }
    return TunedRecord(**{**fields, **changes})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKUMX_CACHE_DIR", str(tmp_path))
    return tmp_path / "tuned.sqlite3"


def test_exact_record_in_the_cache_is_used(cache):
    tokumx.TuningResult((record(decision().call),)).install()
    found = decision()
    assert found.configs.forward == xla_blocked.Config(block_q=48, block_kv=64)
    assert found.source("forward") == "tuned: user cache, exact shape"
    assert found.source("backward") == "heuristic"


def test_nearest_bucket_is_used_and_named(cache):
    near = decision(290).call
    tokumx.TuningResult((record(near),)).install()
    found = decision(300)
    assert found.configs.forward == xla_blocked.Config(block_q=48, block_kv=64)
    assert found.source("forward") == f"tuned: user cache, nearest bucket, {near}"
    assert decision(600).source("forward") == "heuristic"


def test_bucket_keeps_options_and_dtypes_apart():
    call = decision().call
    other = CallSpec(call.op, call.arrays, (*call.options[1:], ("is_causal", False)))
    assert bucket_key(call) != bucket_key(other)


def test_stale_record_is_not_used_and_explain_says_so(cache):
    tokumx.TuningResult((record(decision().call, jax_version="0.1.0"),)).install()
    assert decision().source("forward") == (
        "heuristic; stale record of jax 0.1.0 in user cache not used"
    )


def test_record_of_another_device_is_not_used(cache):
    tokumx.TuningResult((record(decision().call, device="TPU v6 lite"),)).install()
    assert decision().source("forward") == "heuristic"


def test_record_with_a_config_of_another_version_is_not_used(cache):
    old = record(decision().call, config={"tile": 3})
    tokumx.TuningResult((old,)).install()
    assert decision().source("forward") == (
        "heuristic; tuned: user cache, exact shape has a config of another version"
    )


def test_measured_times_choose_the_implementation(cache):
    x = shape(1, 300, 2, 16)
    call = decision().call
    slow = record(call, time_us=50.0)
    fast = record(call, implementation="xla", config={}, time_us=5.0)
    fn = tokumx.dot_product_attention
    with tokumx.TuningResult((slow, fast)):
        (found,) = tokumx.explain(fn, x, x, x, is_causal=True).calls
    assert found.decision.implementation == "xla"
    assert found.decision.reason == "measured 5.0 us forward"


def test_active_result_comes_before_the_cache(cache):
    call = decision().call
    tokumx.TuningResult((record(call, block_q=32),)).install()
    with tokumx.TuningResult((record(call, block_q=16),)):
        assert decision().configs.forward.block_q == 16
    assert decision().configs.forward.block_q == 32


def test_named_file_comes_before_the_cache(cache, tmp_path, monkeypatch):
    call = decision().call
    tokumx.TuningResult((record(call, block_q=32),)).install()
    path = tokumx.TuningResult((record(call, block_q=16),)).save(tmp_path / "my.json")
    monkeypatch.setenv("TOKUMX_TUNED", str(path))
    assert decision().source("forward") == f"tuned: {path}, exact shape"


def test_damaged_named_file_is_skipped_and_reported(tmp_path, monkeypatch):
    path = tmp_path / "broken.json"
    path.write_text('{"format": "tokumx-tuned", "vers')
    monkeypatch.setenv("TOKUMX_TUNED", str(path))
    with pytest.warns(tokumx.TuningFileWarning, match="is skipped") as caught:
        assert decision().source("forward") == "heuristic"
    assert str(caught[0].message).startswith(
        f"TOKUMX_TUNED: {path} is skipped. tokumx: {path} is not a readable tuned file"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one line, once
        decision()
    assert path.exists()


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all" * 50, b"SQLite format 3\0" + b"\7" * 4096]
)
def test_damaged_cache_is_set_aside_and_reported(cache, content):
    cache.write_bytes(content)
    if content:
        with pytest.warns(tokumx.TuningFileWarning, match="was set aside as"):
            assert decision().source("forward") == "heuristic"
        (aside,) = cache.parent.glob("tuned.sqlite3.corrupt-*")
        assert aside.read_bytes() == content
    tokumx.TuningResult((record(decision().call),)).install()
    assert decision().source("forward") == "tuned: user cache, exact shape"


def test_cache_with_a_foreign_record_is_set_aside(cache):
    import sqlite3

    tokumx.TuningResult((record(decision().call),)).install()
    with sqlite3.connect(cache) as db:
        db.execute("UPDATE tuned SET payload = '{}'")
    db.close()
    with pytest.warns(tokumx.TuningFileWarning, match="is damaged"):
        assert decision().source("forward") == "heuristic"


def test_installing_over_a_damaged_cache_keeps_it_aside(cache):
    cache.write_bytes(b"not a database at all" * 50)
    with pytest.warns(tokumx.TuningFileWarning, match="was set aside as"):
        tokumx.TuningResult((record(decision().call),)).install()
    assert decision().source("forward") == "tuned: user cache, exact shape"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Invalid JSON: EOF while parsing a value at line 1 column 0 at the file"),
        ('{"format": "other", "version": 1, "records": []}', "at format"),
        ('{"format": "tokumx-tuned", "version": 1, "records": [{}]}', "records.0.call"),
    ],
)
def test_load_names_the_file_and_the_place(tmp_path, text, problem):
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        tokumx.TuningResult.load(path)
    message = str(error.value)
    assert message.startswith(f"tokumx: {path} is not a readable tuned file; got ")
    assert problem in message
    assert message.endswith("Delete it, or write it again with tokumx.autotune.")


def test_save_and_load_give_back_the_same_records(tmp_path):
    result = tokumx.TuningResult((record(decision().call),))
    path = result.save(tmp_path / "deep" / "tuned.json")
    assert tokumx.TuningResult.load(path).records == result.records
    assert json.loads(path.read_text())["format"] == "tokumx-tuned"


def test_failing_save_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tokumx.TuningResult((record(decision().call),)).save(tmp_path / "t.json")
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", _fail)
    with pytest.raises(OSError, match="disk full"):
        tokumx.TuningResult(()).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _fail(_):
    raise OSError("disk full")


def test_merge_keeps_the_faster_record_of_the_same_call():
    call, other = decision().call, decision(64).call
    a = tokumx.TuningResult((record(call, time_us=10.0), record(other)))
    b = tokumx.TuningResult((record(call, block_q=16, time_us=9.0),))
    for merged in (a.merge(b), b.merge(a)):
        assert {r.identity for r in merged.records} == {
            r.identity for r in (*a.records,)
        }
        assert min(r.time_us for r in merged.records) == 9.0


def test_shipped_files_are_readable():
    from importlib import resources

    for op in resources.files("tokumx.ops").iterdir():
        folder = op / "tuned"
        if folder.is_dir():
            for file in folder.iterdir():
                if file.name.endswith(".json"):
                    assert read_tuned_file(str(file))
