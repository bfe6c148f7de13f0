"""Times functions in turns, so that they share the machine's good and bad moments."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: median, median absolute deviation, all samples."""

    median_us: float
    spread_us: float
    samples_us: tuple[float, ...]

    @classmethod
    def of(cls, samples_us: list[float]) -> "Timing":
        median = statistics.median(samples_us)
        spread = statistics.median(abs(s - median) for s in samples_us)
        return cls(median, spread, tuple(samples_us))


def interleaved(
    fns: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    min_sample_s: float,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Runs every function once a round, each round beginning with another.

    Args:
      fns: what to time; results are waited for. Each is warmed up by one call.
      rounds: samples of each function.
      min_sample_s: a sample repeats its function until it lasts this long.
      budget_s: no new round begins after this time; one always runs.
      clock: seconds, for tests.
    """
    repeats = {name: _repeats(fn, min_sample_s, clock) for name, fn in fns.items()}
    samples: dict[str, list[float]] = {name: [] for name in fns}
    names = list(fns)
    begin = clock()
    for number in range(rounds):
        if number and clock() - begin > budget_s:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds = _sample(fns[name], repeats[name], clock)
            samples[name].append(seconds / repeats[name] * 1e6)
    return {name: Timing.of(s) for name, s in samples.items()}


def _repeats(
    fn: Callable[[], Any], min_sample_s: float, clock: Callable[[], float]
) -> int:
    _sample(fn, 1, clock)
    seconds = _sample(fn, 1, clock)
    return max(1, round(min_sample_s / max(seconds, 1e-9)))


def _sample(fn: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(repeats):
        jax.block_until_ready(fn())
    return clock() - begin
