"""Finds the tokumx calls in a function and searches each exhaustively."""

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pydantic

from tokumx.capture import TracedCall, trace_calls
from tokumx.contract import DIRECTIONS, Direction, Implementation, OpSpec
from tokumx.dispatch.tuned import TunedRecord
from tokumx.ops import OPS
from tokumx.tuning.result import TuningResult
from tokumx.tuning.search import Problem, search
from tokumx.tuning.trial import Trial


class TuneSettings(pydantic.BaseModel):
    """How autotune searches.

    Attributes:
      implementations: names to tune; None for every one that supports a call.
      rounds: timed rounds of the finals, in which candidates take turns.
      min_sample_s: each sample repeats the call until it lasts this long.
      budget_s: of the finals of one implementation and direction.
      drop_ratio: a candidate whose first time is this many times the best is
        not timed again.
      max_reference_bytes: temporary memory up to which the plain
        implementation is run as the judge of the numbers.
      progress: show a progress bar.
      seed: of the operands.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    implementations: tuple[str, ...] | None = None
    rounds: pydantic.PositiveInt = 7
    min_sample_s: pydantic.PositiveFloat = 0.02
    budget_s: pydantic.PositiveFloat = 30.0
    drop_ratio: float = pydantic.Field(default=1.3, gt=1)
    max_reference_bytes: pydantic.NonNegativeInt = 2 << 30
    progress: bool = False
    seed: int = 0


def autotune(
    fn: Callable[..., Any],
    *args: Any,
    settings: TuneSettings | None = None,
    **kwargs: Any,
) -> TuningResult:
    """Searches the configs of every tokumx call inside fn, on this device.

    fn is traced, not run; each distinct call is then timed alone, on random
    operands of its shapes, forward and (if fn differentiates it) backward
    apart. A config with wrong numbers or a failing compilation cannot win,
    and the winner is never slower than the default in the same run.

    Args:
      fn: an op, or any function that calls some, e.g. a training step.
      *args, **kwargs: its arguments; jax.ShapeDtypeStruct will do for arrays.
      settings: how to search.

    Returns:
      A TuningResult: save, load, merge, install it, or use it in `with`.
    """
    settings = settings or TuneSettings()
    jobs = list(_jobs(trace_calls(fn, *args, **kwargs), settings))
    records: list[TunedRecord] = []
    trials: list[Trial] = []
    with _progress(settings, len(jobs)) as advance:
        for op, call, implementation, direction in jobs:
            problem = Problem(op, call.decision, implementation, direction)
            found = search(problem, settings)
            trials += found
            records += _record(problem, found)
            advance(f"{op.name} {implementation.name} {direction}")
    return TuningResult(tuple(records), tuple(trials))


_Job = tuple[OpSpec, TracedCall, Implementation, Direction]


def _jobs(calls: list[TracedCall], settings: TuneSettings) -> Iterator[_Job]:
    for call in calls:
        spec, device = call.decision.call, call.decision.device
        if not spec.is_static:
            continue
        op = OPS[spec.op]
        wanted = settings.implementations
        chosen = (
            op.implementations
            if wanted is None
            else [op.implementation(name) for name in wanted]
        )
        for implementation in chosen:
            if implementation.unsupported(spec, device) is not None:
                continue
            for direction in DIRECTIONS:
                has_own = direction == "forward" or (
                    implementation.backward and not implementation.forward_only
                )
                if direction in call.directions and has_own:
                    yield op, call, implementation, direction


def _record(problem: Problem, trials: list[Trial]) -> list[TunedRecord]:
    default = next(t for t in trials if t.is_default)
    for trial in trials:
        if trial.outcome == "won" and trial.time_us and trial.spread_us is not None:
            record = TunedRecord(
                call=trial.call.to_json(),
                device=problem.decision.device.kind,
                implementation=trial.implementation,
                direction=trial.direction,
                config=trial.config.model_dump(),
                time_us=trial.time_us,
                spread_us=trial.spread_us,
                default_time_us=default.time_us or trial.time_us,
                jax_version=jax.__version__,
                tokumx_version=importlib.metadata.version("tokumx"),
            )
            return [record]
    return []


@contextlib.contextmanager
def _progress(settings: TuneSettings, total: int) -> Iterator[Callable[[str], None]]:
    """Gives a function to call after each finished search."""
    if not settings.progress:
        yield lambda _: None
        return
    from rich.progress import Progress

    with Progress() as progress:  # a bar with the time left
        task = progress.add_task("autotune", total=total)
        yield lambda text: progress.update(task, advance=1, description=text)
