"""Exhaustive search over one implementation's configs for one call.

1. every candidate is compiled and run once; errors and wrong numbers end it
2. each is timed once; those far behind the best end here
3. the rest, and always the default, take turns until the times are steady
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tokumx.bench.timer import interleaved
from tokumx.contract import Config, Direction, Implementation, OpSpec
from tokumx.dispatch import Decision
from tokumx.dispatch.run import backward_function, forward_function
from tokumx.numerics import budget_for, compare
from tokumx.tuning.trial import Trial

if TYPE_CHECKING:
    from tokumx.tuning.autotune import TuneSettings

Run = Callable[[], Any]


@dataclass(frozen=True)
class Problem:
    """What is searched: one implementation, one call, one direction."""

    op: OpSpec
    decision: Decision
    implementation: Implementation
    direction: Direction

    def candidates(self) -> list[Config]:
        """The default first, then the rest of the search space."""
        call, device = self.decision.call, self.decision.device
        default = self.implementation.heuristic_config(call, device, self.direction)
        space = self.implementation.search_space(call, device, self.direction)
        return list(dict.fromkeys([default, *space]))

    def trial(self, config: Config, is_default: bool) -> Trial:
        return Trial(
            self.decision.call,
            self.implementation.name,
            self.direction,
            config,
            is_default,
        )


def search(problem: Problem, settings: "TuneSettings") -> list[Trial]:
    """The trials of every candidate; exactly one of them won, if any ran."""
    operands = _Operands(problem, settings)
    trials: list[Trial] = []
    running: dict[int, Run] = {}
    for number, config in enumerate(problem.candidates()):
        trial = problem.trial(config, is_default=number == 0)
        run, failure = operands.build(config)
        if run is not None:
            running[number] = run
        trials.append(trial.ended(failure))
    if running:
        _time(trials, running, settings)
    return trials


def _time(
    trials: list[Trial], running: Mapping[int, Run], settings: "TuneSettings"
) -> None:
    """Fills in times and outcomes."""
    first = {
        n: interleaved(
            {"one": run},
            rounds=1,
            min_sample_s=settings.min_sample_s,
            budget_s=settings.min_sample_s,
        )["one"].median_us
        for n, run in running.items()
    }
    best = min(first.values())
    finals = {
        str(n): run
        for n, run in running.items()
        if first[n] <= best * settings.drop_ratio or trials[n].is_default
    }
    timings = interleaved(
        finals,
        rounds=settings.rounds,
        min_sample_s=settings.min_sample_s,
        budget_s=settings.budget_s,
    )
    for n in running:
        if str(n) in timings:
            timing = timings[str(n)]
            trials[n] = trials[n].timed(timing.median_us, timing.spread_us)
        else:
            trials[n] = trials[n].ended(f"first time {first[n]:.0f} us, far behind")
    winner = _winner({int(n): t.median_us for n, t in timings.items()}, trials)
    for n in map(int, timings):
        trials[n] = trials[n].ended("won" if n == winner else "slower")


def _winner(medians: Mapping[int, float], trials: list[Trial]) -> int:
    """The fastest, unless the default is within its spread of it."""
    fastest = min(medians, key=lambda n: medians[n])
    default = next((n for n in medians if trials[n].is_default), None)
    if default is None:
        return fastest
    spread = trials[default].spread_us or 0.0
    return default if medians[default] - medians[fastest] <= spread else fastest


class _Operands:
    """Operands of one problem on this device, and the judge of results."""

    def __init__(self, problem: Problem, settings: "TuneSettings"):
        self.problem = problem
        self.arrays = dict(problem.op.make_arrays(problem.decision.call, settings.seed))
        self.judge = self._reference(settings.max_reference_bytes)
        self.extra: tuple[Any, ...] = ()
        if problem.direction == "backward":
            self.extra = self._backward_operands()

    def build(self, config: Config) -> tuple[Run | None, str]:
        """A compiled candidate, or why it cannot win."""
        p = self.problem
        make = forward_function if p.direction == "forward" else backward_function
        fn = make(p.op, p.implementation, p.decision.call, config)
        operands = (self.arrays, *self.extra)
        try:
            compiled = jax.jit(fn).lower(*operands).compile()
            results = jax.device_get(compiled(*operands))
        except Exception as error:  # whatever a compiler or a kernel throws
            return None, f"failed: {type(error).__name__}: {_first_line(error)}"
        wrong = self._wrong(results)
        if wrong:
            return None, f"wrong numbers: {wrong}"
        return (lambda: compiled(*operands)), ""

    def _wrong(self, results: Mapping[str, Any]) -> str:
        if self.judge is None:  # the default is the first to be built
            self.judge = (results, results)
            return ""
        naive, truth = self.judge
        op, direction = self.problem.op.name, self.problem.direction
        for name in truth:
            budget = budget_for(op, str(results[name].dtype), direction)
            verdict = compare(name, results[name], naive[name], truth[name], budget)
            if not verdict.ok:
                return str(verdict)
        return ""

    def _reference(self, max_bytes: int) -> tuple[Any, Any] | None:
        """Results of the reference, in the operands' dtype and in f32, or None
        if it needs too much memory."""
        fn = functools.partial(_reference_results, self.problem)
        wide = {
            n: x.astype(jnp.promote_types(x.dtype, jnp.float32))
            if jnp.issubdtype(x.dtype, jnp.floating)
            else x
            for n, x in self.arrays.items()
        }
        memory = jax.jit(fn).lower(wide).compile().memory_analysis()
        if memory is not None and memory.temp_size_in_bytes > max_bytes:
            return None
        return tuple(jax.device_get(jax.jit(fn)(x)) for x in (self.arrays, wide))

    def _backward_operands(self) -> tuple[Any, Any]:
        p = self.problem
        config = p.implementation.heuristic_config(
            p.decision.call, p.decision.device, "forward"
        )
        forward = forward_function(p.op, p.implementation, p.decision.call, config)
        outputs = jax.jit(forward)(self.arrays)
        return outputs, _cotangents(outputs)


def _reference_results(problem: Problem, arrays: Mapping[str, Any]) -> Any:
    """The public outputs, or their gradients, of the reference."""
    op, call = problem.op, problem.decision.call
    reference = op.reference
    config = reference.heuristic_config(call, problem.decision.device, "forward")
    forward = forward_function(op, reference, call, config)
    if problem.direction == "forward":
        return {n: forward(arrays)[n] for n in op.graded_outputs}
    wanted = {n: arrays[n] for n in op.differentiable if n in arrays}
    outputs, pull_back = jax.vjp(lambda some: forward({**arrays, **some}), wanted)
    return pull_back(_cotangents(outputs))[0]


def _cotangents(outputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The same numbers for every implementation of a call."""
    return {
        n: jnp.cos(jnp.arange(y.size, dtype=jnp.float32))
        .reshape(y.shape)
        .astype(y.dtype)
        for n, y in outputs.items()
    }


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
