"""The timer's arithmetic, with clocks and durations that are made up."""

import itertools

import pytest

from tokumx.bench.timer import Remote, Timing, interleaved, paired_ratio


class FakeMachine:
    """A clock that functions advance by their cost; `slow` scales some moments."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def clock(self):
        return self.now

    def function(self, name, seconds):
        def run():
            self.calls.append(name)
            self.now += seconds() if callable(seconds) else seconds

        return run


def time_all(machine, costs, **settings):
    fns = {name: machine.function(name, cost) for name, cost in costs.items()}
    given = {"rounds": 3, "min_sample_s": 1.0, "budget_s": 1e6} | settings
    return interleaved(fns, clock=machine.clock, **given)


def test_timing_median_and_absolute_deviation():
    timing = Timing.of([10.0, 1.0, 3.0, 4.0, 2.0])
    assert (timing.median_us, timing.spread_us) == (3.0, 1.0)
    assert timing.samples_us == (10.0, 1.0, 3.0, 4.0, 2.0)


def test_interleaved_reports_microseconds_a_call():
    timings = time_all(FakeMachine(), {"a": 0.25, "b": 2.0})
    assert timings["a"].samples_us == (250_000.0,) * 3
    assert timings["b"].samples_us == (2_000_000.0,) * 3


def test_interleaved_repeats_until_the_sample_is_long_enough():
    machine = FakeMachine()
    time_all(machine, {"short": 0.3, "long": 60.0}, rounds=1)
    # 3 calls to learn the duration, one that is not counted, 4 to last a second;
    # the long one is called once to learn it, and once more.
    assert machine.calls.count("short") == 3 + 1 + 4
    assert machine.calls.count("long") == 1 + 1


def test_interleaved_one_unlucky_first_call_does_not_cut_the_repeats():
    machine = FakeMachine()
    costs = iter([40.0] + [0.1] * 100)
    time_all(machine, {"a": lambda: next(costs)}, rounds=1)
    assert len(machine.calls) == 3 + 1 + 10


def test_interleaved_begins_each_round_with_another():
    machine = FakeMachine()
    time_all(machine, {"a": 60.0, "b": 60.0, "c": 60.0}, rounds=3)
    assert "".join(machine.calls) == "abc" + "abc" + "bca" + "cab"


def test_interleaved_stops_at_the_budget_after_the_least_rounds():
    timings = time_all(FakeMachine(), {"a": 2.0}, rounds=9, budget_s=5.0)
    assert len(timings["a"].samples_us) == 2
    timings = time_all(FakeMachine(), {"a": 2.0}, rounds=9, budget_s=5.0, min_rounds=4)
    assert len(timings["a"].samples_us) == 4


def test_interleaved_goes_on_while_unsteady():
    costs = iter([10.0] * 3 + [10.0, 15.0, 20.0] + [10.0] * 100)
    timings = time_all(
        FakeMachine(), {"a": lambda: next(costs)}, rounds=3, steady_spread=0.1
    )
    samples = timings["a"].samples_us
    assert len(samples) > 3
    assert timings["a"].spread_us <= 0.1 * timings["a"].median_us


def test_interleaved_never_runs_more_than_fifty_rounds():
    costs = itertools.cycle([10.0, 15.0, 20.0])
    timings = time_all(
        FakeMachine(), {"a": lambda: next(costs)}, rounds=3, steady_spread=0.01
    )
    assert len(timings["a"].samples_us) == 50


def test_interleaved_takes_the_time_that_a_remote_reports():
    asked = []

    def seconds(repeats):
        asked.append(repeats)
        return 0.5 * repeats

    timings = interleaved(
        {"remote": Remote(seconds)}, rounds=2, min_sample_s=1.0, budget_s=1e6
    )
    assert timings["remote"].samples_us == (500_000.0, 500_000.0)
    assert asked == [1, 1, 1, 1, 2, 1, 2]


def test_paired_ratio_is_the_median_of_each_rounds_ratio():
    # The machine is ten times slower in the second round, for both alike.
    slow, fast = Timing.of([4.0, 40.0, 5.0]), Timing.of([2.0, 20.0, 2.0])
    ratio = paired_ratio(slow, fast)
    assert (ratio.median, ratio.spread) == (2.0, 0.0)


def test_paired_ratio_of_unequal_rounds_is_refused():
    with pytest.raises(ValueError, match="zip"):
        paired_ratio(Timing.of([1.0]), Timing.of([1.0, 2.0]))
