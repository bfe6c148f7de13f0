"""What a run records of right, wrong, failing and absent contestants."""

import pytest

from tokumx.bench.case import Absent, InProcess, InTorch, Target
from tokumx.bench.cli import exit_status
from tokumx.bench.records import Report
from tokumx.bench.runner import RunSettings, Watcher, run

SETTINGS = RunSettings(rounds=2, budget_s=0.0, min_sample_s=1e-4, with_torch=False)


def right(arrays):
    return arrays["x"] ** 2


def wrong(arrays):
    return arrays["x"] ** 2 + 0.01


def failing(arrays):
    raise NotImplementedError("no squares here\nsecond line")


def measure(benchmark) -> Report:
    plan = [(case, case.works) for case in benchmark.cases]
    return run(benchmark, plan, SETTINGS, Watcher())


def test_run_gives_right_contestants_a_ratio(tiny_benchmark):
    report = measure(tiny_benchmark(InProcess("peer", right)))
    assert [m.work for m in report.measurements] == ["forward", "forward_backward"]
    for m in report.measurements:
        subject, peer = m.entries
        assert (subject.status, peer.status) == ("timed", "timed")
        assert subject.ratio is None
        assert len(peer.samples_us) >= SETTINGS.rounds
        pairs = zip(peer.samples_us, subject.samples_us, strict=True)
        assert min(a / b for a, b in pairs) <= peer.ratio
        assert m.attained > 0
        assert report.share(m) > 0
    assert exit_status(report, strict=True) == 0


def test_run_gives_a_wrong_peer_no_number(tiny_benchmark):
    report = measure(tiny_benchmark(InProcess("peer", wrong)))
    peer = report.measurements[0].entry("peer")
    assert peer.status == "wrong"
    assert peer.error == pytest.approx(0.01, rel=1e-2)
    assert "WRONG" in peer.reason
    assert (peer.median_us, peer.ratio, peer.samples_us) == (None, None, ())
    assert exit_status(report, strict=True) == 0


def test_run_fails_when_tokumx_is_wrong(tiny_benchmark, tiny_case):
    benchmark = tiny_benchmark()
    cases = [tiny_case([InProcess("tokumx", wrong), InProcess("peer", right)])]
    object.__setattr__(benchmark, "cases", cases)
    report = measure(benchmark)
    subject, peer = report.measurements[0].entries
    assert subject.status == "wrong"
    assert peer.status == "timed"
    assert peer.ratio is None
    assert exit_status(report, strict=False) == 1


def test_run_reports_a_contestant_that_raises(tiny_benchmark):
    report = measure(tiny_benchmark(InProcess("peer", failing)))
    peer = report.measurements[0].entry("peer")
    assert peer.status == "failed"
    assert peer.reason == "NotImplementedError: no squares here"


def test_run_reports_absent_contestants_with_the_reason(tiny_benchmark):
    report = measure(
        tiny_benchmark(Absent("peer", "not installed"), InTorch("torch", "x", {}))
    )
    peer, torch = report.measurements[0].entries[1:]
    assert (peer.status, peer.reason) == ("absent", "not installed")
    assert (torch.status, torch.reason) == ("absent", "left out by --no-torch")


def test_run_judges_targets_and_keeps_misses(tiny_benchmark):
    targets = [
        Target("easy", "peer", 0.0, lambda m: True),
        Target("hopeless", "peer", 1e9, lambda m: m.work == "forward"),
        Target("nobody", "gone", 1.0, lambda m: m.work == "forward"),
    ]
    contestants = (InProcess("peer", right), Absent("gone", "not installed"))
    report = measure(tiny_benchmark(*contestants, targets=targets))
    found = [(o.target, o.reached, o.reason) for o in report.outcomes]
    assert found == [
        ("easy", True, ""),
        ("easy", True, ""),
        ("hopeless", False, ""),
        ("nobody", None, "gone absent: not installed"),
    ]
    assert exit_status(report, strict=False) == 0
    assert exit_status(report, strict=True) == 1


def test_run_tells_the_watcher_everything_it_expected(tiny_benchmark):
    class Sum(Watcher):
        def begin(self, environment, expected_s):
            self.left = expected_s

        def measured(self, measurement, expected_s):
            self.left -= expected_s

    watcher = Sum()
    benchmark = tiny_benchmark()
    run(benchmark, [(benchmark.cases[0], ("forward",))], SETTINGS, watcher)
    assert watcher.left == pytest.approx(0.0)


def test_report_round_trip_through_json(tiny_benchmark, tmp_path):
    nan = InProcess("nan", lambda arrays: arrays["x"] / 0)
    report = measure(tiny_benchmark(InProcess("peer", right), nan))
    assert report.measurements[0].entry("nan").error == float("inf")
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report


def test_report_of_another_format_is_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="format"):
        Report.load(tmp_path / "other.json")
