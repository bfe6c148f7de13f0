"""Times functions in turns, so that they share the machine's good and bad moments."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

_MAX_ROUNDS = 50
# Durations of a call, in units of min_sample_s.
_SHORT = 5
_SLOW = 50


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: median, median absolute deviation, all samples.

    Sample i of every function that was timed together comes from round i.
    """

    median_us: float
    spread_us: float
    samples_us: tuple[float, ...]

    @classmethod
    def of(cls, samples_us: Sequence[float]) -> "Timing":
        median, spread = _median_and_deviation(samples_us)
        return cls(median, spread, tuple(samples_us))


@dataclass(frozen=True)
class Ratio:
    """Median over the rounds, and median absolute deviation."""

    median: float
    spread: float


@dataclass(frozen=True)
class Remote:
    """A function of another process, which is timed over there.

    Attributes:
      seconds: from a number of repeats to the seconds they took.
    """

    seconds: Callable[[int], float]


Timed = Callable[[], Any] | Remote


def paired_ratio(numerator: Timing, denominator: Timing) -> Ratio:
    """The ratio of two functions that were timed in the same rounds.

    A slow moment of the machine hits both sides of a round's ratio, so it
    moves this median less than the ratio of the medians.
    """
    pairs = zip(numerator.samples_us, denominator.samples_us, strict=True)
    return Ratio(*_median_and_deviation([a / b for a, b in pairs]))


def interleaved(
    fns: Mapping[str, Timed],
    *,
    rounds: int,
    min_sample_s: float,
    budget_s: float,
    steady_spread: float | None = None,
    min_rounds: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Runs every function once a round, each round beginning with another.

    Args:
      fns: what to time; results are waited for. Each is warmed up first.
      rounds: samples of each function.
      min_sample_s: a sample repeats its function until it lasts this long.
      budget_s: no new round begins after this time, except the first ones.
      steady_spread: further rounds are run, up to 50, while the spread of any
        function is a larger share of its median than this; None for none.
      min_rounds: how many rounds are run whatever they cost.
      clock: seconds, for tests.
    """
    samplings = {name: _sampling(fn, min_sample_s, clock) for name, fn in fns.items()}
    samples: dict[str, list[float]] = {name: [] for name in fns}
    names = list(fns)
    begin = clock()
    for number in range(max(rounds, _MAX_ROUNDS)):
        if number >= min_rounds and clock() - begin > budget_s:
            break
        if number >= rounds and _is_steady(samples, steady_spread):
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(_sample(fns[name], samplings[name], clock))
    return {name: Timing.of(s) for name, s in samples.items()}


def _is_steady(samples: Mapping[str, list[float]], limit: float | None) -> bool:
    if limit is None:
        return True
    timings = map(Timing.of, samples.values())
    return all(t.spread_us <= limit * t.median_us for t in timings)


@dataclass(frozen=True)
class _Sampling:
    """How one function is sampled.

    Attributes:
      repeats: calls of a sample.
      warms_up: one more call before them is not counted, to take back the
        caches and the allocator from the function timed before; only worth
        it for calls that are short.
    """

    repeats: int
    warms_up: bool


def _sampling(fn: Timed, min_sample_s: float, clock: Callable[[], float]) -> _Sampling:
    """Calls fn once or, unless it is slow, three times: any call may be unlucky,
    and the first may pay for fresh memory."""
    seconds = _seconds(fn, 1, clock)
    if seconds < _SLOW * min_sample_s:
        seconds = min(seconds, *(_seconds(fn, 1, clock) for _ in range(2)))
    return _Sampling(
        repeats=max(1, math.ceil(min_sample_s / max(seconds, 1e-9))),
        warms_up=seconds < _SHORT * min_sample_s,
    )


def _sample(fn: Timed, sampling: _Sampling, clock: Callable[[], float]) -> float:
    """Microseconds a call."""
    if sampling.warms_up:
        _seconds(fn, 1, clock)
    return _seconds(fn, sampling.repeats, clock) / sampling.repeats * 1e6


def _seconds(fn: Timed, repeats: int, clock: Callable[[], float]) -> float:
    if isinstance(fn, Remote):
        return fn.seconds(repeats)
    begin = clock()
    for _ in range(repeats):
        jax.block_until_ready(fn())
    return clock() - begin


def _median_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    median = statistics.median(values)
    return median, statistics.median(abs(v - median) for v in values)
