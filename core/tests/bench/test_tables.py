"""The tables say what the record says, losses and gaps included."""

from tokumx.bench import tables
from tokumx.bench.case import Absent, InProcess
from tokumx.bench.markdown import to_markdown
from tokumx.bench.records import Entry, Measurement, Report
from tokumx.bench.runner import RunSettings, Watcher, run


def entry(name, ratio=None, status="timed", reason=""):
    time_us = 1000.0 if status == "timed" else None
    return Entry(
        name=name,
        status=status,
        reason=reason,
        error=0.5 if status == "wrong" else None,
        median_us=time_us,
        spread_us=time_us and 10.0,
        ratio=ratio,
    )


def with_entries(report: Report, *entries: Entry) -> Report:
    measurement: Measurement = report.measurements[0].model_copy(
        update={"entries": (entry("tokumx"), *entries)}
    )
    return report.model_copy(update={"measurements": (measurement,)})


def make_report(tiny_benchmark) -> Report:
    benchmark = tiny_benchmark(Absent("peer", "not | installed"))
    settings = RunSettings(rounds=1, budget_s=0, min_sample_s=1e-4, with_torch=False)
    return run(benchmark, [(benchmark.cases[0], ("forward",))], settings, Watcher())


def test_speed_table_marks_losses_and_gaps(tiny_benchmark):
    report = with_entries(
        make_report(tiny_benchmark),
        entry("won", 3.0),
        entry("lost", 0.5),
        entry("bad", status="wrong"),
        entry("away", status="absent"),
    )
    (row,) = tables.speed_table(report).rows
    cells = {cell.text: cell.mood for cell in row}
    assert cells["3.00x"] == "good"
    assert cells["0.50x"] == "bad"
    assert cells["wrong 5.0e-01"] == "bad"
    assert cells["absent"] == ""
    assert "1.000 ± 0.010" in cells


def test_notes_give_each_reason_once(tiny_benchmark):
    report = with_entries(
        make_report(tiny_benchmark), entry("p", status="absent", reason="gone")
    )
    twice = report.model_copy(update={"measurements": report.measurements * 2})
    assert tables.notes(twice) == ["p absent: gone. Cases: square"]


def test_markdown_holds_every_table_and_escapes_bars(tiny_benchmark):
    text = to_markdown(make_report(tiny_benchmark), "picture.png")
    assert "![speed of tokumx over each peer](picture.png)" in text
    assert "peer absent: not \\| installed. Cases: square" in text
    for title in ("Speed of tokumx", "Milliseconds", "Temporary memory", "What tokumx"):
        assert f"## {title}" in text


def test_memory_table_lists_compiled_contestants_only(tiny_benchmark):
    benchmark = tiny_benchmark(
        InProcess("peer", lambda a: a["x"] ** 2), Absent("gone", "x")
    )
    settings = RunSettings(rounds=1, budget_s=0, min_sample_s=1e-4, with_torch=False)
    plan = [(benchmark.cases[0], ("forward",))]
    table = tables.memory_table(run(benchmark, plan, settings, Watcher()))
    assert table.columns == ("case", "direction", "tokumx", "peer")
