"""Runs the cases of a benchmark: gate, then timing in turns, then the record.

Nothing here knows an op; a benchmark is a list of cases (see case.py).
"""

import time
from collections.abc import Iterator, Sequence

import pydantic

from tokumx.bench.case import SUBJECT, Absent, Benchmark, Case, InTorch
from tokumx.bench.ceilings import measure_ceilings
from tokumx.bench.environment import read_environment, usable_cores
from tokumx.bench.gate import Gate
from tokumx.bench.prepare import Operands, Prepared, prepare
from tokumx.bench.records import (
    Entry,
    Environment,
    Measurement,
    Report,
    Work,
)
from tokumx.bench.steps import make_cotangent
from tokumx.bench.targets import judge_targets
from tokumx.bench.timer import Timing, interleaved, paired_ratio
from tokumx.bench.torch_process import TorchError, TorchProcess, torch_process

DISTRIBUTION = "normal"


class RunSettings(pydantic.BaseModel):
    """How long to measure, and with whom.

    Attributes:
      rounds: at least so many rounds a measurement, whatever they take.
      budget_s: while rounds are unsteady, more are run for this long.
      min_sample_s: a sample repeats a call until it lasts this long.
      steady_spread: a spread below this share of the median is steady.
      with_torch: start the torch worker, if there is a Python for it.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    rounds: pydantic.PositiveInt = 5
    budget_s: pydantic.NonNegativeFloat = 3.0
    min_sample_s: pydantic.PositiveFloat = 0.02
    steady_spread: pydantic.PositiveFloat = 0.02
    with_torch: bool = True


class Watcher:
    """Told how a run goes; this one shows nothing."""

    def begin(self, environment: Environment, expected_s: float) -> None:
        """The run begins; so long it may take."""

    def measured(self, measurement: Measurement, expected_s: float) -> None:
        """A measurement is done that was expected to take so long."""


Plan = Sequence[tuple[Case, tuple[Work, ...]]]


def run(
    benchmark: Benchmark, plan: Plan, settings: RunSettings, watcher: Watcher
) -> Report:
    """Measures every case of the plan, in its order."""
    begin = time.monotonic()
    with torch_process(settings.with_torch, usable_cores()) as torch:
        versions = {"torch": _torch_version(torch)}
        environment = read_environment(versions)
        watcher.begin(
            environment, sum(_expected_s(c, w, settings) for c, w in _flat(plan))
        )
        ceilings = measure_ceilings()
        measurements = []
        for case, works in plan:
            for found in _measure_case(case, works, settings, torch):
                measurements.append(found)
                watcher.measured(found, _expected_s(case, found.work, settings))
        ceilings = ceilings.higher(measure_ceilings())
    return Report(
        benchmark=benchmark.name,
        title=benchmark.title,
        remarks=tuple(benchmark.remarks),
        distribution=DISTRIBUTION,
        settings=settings.model_dump(),
        environment=environment,
        ceilings=ceilings,
        measurements=tuple(measurements),
        outcomes=judge_targets(benchmark.targets, measurements),
        seconds=time.monotonic() - begin,
    )


def _flat(plan: Plan) -> Iterator[tuple[Case, Work]]:
    for case, works in plan:
        for work in works:
            yield case, work


def _torch_version(torch: TorchProcess | Absent) -> str:
    return torch.reason if isinstance(torch, Absent) else torch.version


def _measure_case(
    case: Case,
    works: tuple[Work, ...],
    settings: RunSettings,
    torch: TorchProcess | Absent,
) -> Iterator[Measurement]:
    arrays = case.make_arrays()
    operands = Operands(case, arrays, make_cotangent(case, arrays))
    gate = Gate(case, arrays, operands.cotangent, _most(works))
    contestants = case.contestants()
    torch = _load_torch(torch, contestants, operands)
    for work in works:
        prepared: list[Prepared] = []
        entries: dict[str, Entry] = {}
        for contestant in contestants:
            found = prepare(contestant, operands, work, torch)
            if isinstance(found, Prepared):
                prepared.append(found)
                entries[found.name] = _judged(found, gate)
            else:
                entries[found.name] = found
        right = [p for p in prepared if entries[p.name].status == "timed"]
        entries |= _timed(right, entries, settings)
        yield _measurement(case, work, tuple(entries.values()))


def _most(works: tuple[Work, ...]) -> Work:
    return "forward_backward" if "forward_backward" in works else "forward"


def _load_torch(
    torch: TorchProcess | Absent, contestants: Sequence[object], operands: Operands
) -> TorchProcess | Absent:
    for contestant in contestants:
        if isinstance(contestant, InTorch) and isinstance(torch, TorchProcess):
            try:
                torch.load(
                    contestant,
                    operands.arrays,
                    operands.cotangent,
                    operands.case.differentiable,
                )
            except TorchError as error:
                return Absent("torch", str(error))
    return torch


def _judged(prepared: Prepared, gate: Gate) -> Entry:
    """Without a time yet; status "timed" means that it may get one."""
    verdict = gate.judge(prepared.name, prepared.results)
    return Entry(
        name=prepared.name,
        status="timed" if verdict.ok else "wrong",
        reason="" if verdict.ok else str(verdict.worst),
        error=verdict.worst.error,
        allowed=verdict.worst.allowed,
        temp_bytes=prepared.temp_bytes,
        decision=prepared.decision,
    )


def _timed(
    prepared: Sequence[Prepared], entries: dict[str, Entry], settings: RunSettings
) -> dict[str, Entry]:
    """The entries of the contestants that passed, with their times."""
    if not prepared:
        return {}
    timings = interleaved(
        {p.name: p.timed for p in prepared},
        rounds=settings.rounds,
        min_rounds=settings.rounds,
        min_sample_s=settings.min_sample_s,
        budget_s=settings.budget_s,
        steady_spread=settings.steady_spread,
    )
    subject = timings.get(SUBJECT)
    return {n: _with_time(entries[n], t, subject) for n, t in timings.items()}


def _with_time(entry: Entry, timing: Timing, subject: Timing | None) -> Entry:
    fields: dict[str, object] = {
        "median_us": timing.median_us,
        "spread_us": timing.spread_us,
        "samples_us": timing.samples_us,
    }
    if subject is not None and entry.name != SUBJECT:
        ratio = paired_ratio(timing, subject)
        fields |= {"ratio": ratio.median, "ratio_spread": ratio.spread}
    return entry.model_copy(update=fields)


def _measurement(case: Case, work: Work, entries: tuple[Entry, ...]) -> Measurement:
    subject = next(e for e in entries if e.name == SUBJECT)
    is_matmul = case.bound_by == "matmul"
    amount = case.flops[work] if is_matmul else case.bytes_moved
    return Measurement(
        case=case.name,
        model=case.model,
        kind=case.kind,
        dtype=case.dtype,
        work=work,
        sizes=dict(case.sizes),
        options=dict(case.options),
        entries=entries,
        # units a microsecond / 1000 = giga-units a second
        attained=amount / subject.median_us / 1e3 if subject.median_us else None,
        ceiling=case.bound_by,
    )


def _expected_s(case: Case, work: Work, settings: RunSettings) -> float:
    """A rough guess, for the time left: compiling, then rounds of contestants
    that do all the work at a third of a usual speed."""
    compiling = 3.0 if work == "forward" else 8.0
    round_s = 4 * case.flops[work] / 20e9
    timing = (settings.rounds + 2) * round_s
    return compiling + max(timing, settings.budget_s)
