"""A report as tables of text, for the terminal and for Markdown alike."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tokumx.bench.records import (
    Entry,
    Environment,
    Measurement,
    Outcome,
    Report,
    Work,
)

Mood = Literal["", "good", "bad"]
WORK_NAMES: dict[Work, str] = {
    "forward": "fwd",
    "forward_backward": "fwd+bwd",
}

_TARGET_COLUMNS = ("target", "case", "direction", "wanted", "got", "verdict")


@dataclass(frozen=True)
class Cell:
    """Text, and whether it is good or bad news."""

    text: str
    mood: Mood = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def environment_lines(environment: Environment) -> list[str]:
    """The machine and the software."""
    e = environment
    versions = ", ".join(f"{name} {v}" for name, v in e.versions.items())
    variables = " ".join(f"{n}={v}" for n, v in e.variables.items()) or "none"
    return [
        f"Device: {e.device}, {e.cores} cores in use, {e.ram_gib} GiB, {e.os}",
        f"Load average at the start: {e.load:.2f}",
        f"Versions: {versions}",
        f"Commit: {e.commit or 'unknown'}",
        f"Date: {e.date}",
        f"Command: {e.command}",
        f"Environment variables: {variables}",
    ]


def run_lines(report: Report) -> list[str]:
    """How the numbers were made."""
    c = report.ceilings
    settings = ", ".join(f"{n}={v}" for n, v in report.settings.items())
    return [
        f"Settings: {settings}",
        f"Inputs: {report.distribution} distribution",
        f"Ceilings of this run: matmul {c.matmul:.0f} GFLOP/s (f32), memory "
        f"{c.bandwidth:.1f} GB/s",
        f"Took: {report.seconds:.0f} s",
    ]


def speed_table(report: Report) -> Table:
    """How many times as fast tokumx is as each peer."""
    columns = ("case", "direction", "tokumx ms")
    rows = [_speed_row(report, m) for m in report.measurements]
    return Table(
        "Speed of tokumx over each peer (median of paired rounds)",
        (*columns, *report.peers, "attained", "of ceiling"),
        tuple(rows),
    )


def _speed_row(report: Report, m: Measurement) -> tuple[Cell, ...]:
    subject, share = m.entries[0], report.share(m)
    unit = "GFLOP/s" if m.ceiling == "matmul" else "GB/s"
    return (
        Cell(m.case),
        Cell(WORK_NAMES[m.work]),
        _time(subject),
        *(_ratio(m.entry(peer)) for peer in report.peers),
        Cell("-" if m.attained is None else f"{m.attained:.1f} {unit}"),
        Cell("-" if share is None else f"{share:.0%}"),
    )


def _ratio(entry: Entry | None) -> Cell:
    if entry is None:
        return Cell("")
    if entry.status != "timed":
        return _without_number(entry)
    if entry.ratio is None:
        return Cell("-")
    return Cell(f"{entry.ratio:.2f}x", "bad" if entry.ratio < 1 else "good")


def _without_number(entry: Entry) -> Cell:
    if entry.status == "wrong":
        error = "" if entry.error is None else f" {entry.error:.1e}"
        return Cell(f"wrong{error}", "bad")
    return Cell(entry.status, "bad" if entry.status == "failed" else "")


def _time(entry: Entry) -> Cell:
    if entry.median_us is None or entry.spread_us is None:
        return _without_number(entry)
    return Cell(f"{entry.median_us / 1e3:.3f} ± {entry.spread_us / 1e3:.3f}")


def time_table(report: Report) -> Table:
    """Milliseconds of every contestant."""
    names = ("tokumx", *report.peers)
    return Table(
        "Milliseconds a call: median ± median absolute deviation",
        ("case", "direction", *names, "rounds"),
        tuple(
            (
                Cell(m.case),
                Cell(WORK_NAMES[m.work]),
                *_cells(m, names, _time),
                Cell(str(max(len(e.samples_us) for e in m.entries))),
            )
            for m in report.measurements
        ),
    )


def memory_table(report: Report) -> Table:
    """Temporary memory of the contestants that jax compiles."""
    measured = [e for m in report.measurements for e in m.entries]
    names = tuple(dict.fromkeys(e.name for e in measured if e.temp_bytes is not None))
    return Table(
        "Temporary memory, MB, as the compiler reports it",
        ("case", "direction", *names),
        tuple(
            (Cell(m.case), Cell(WORK_NAMES[m.work]), *_cells(m, names, _megabytes))
            for m in report.measurements
        ),
    )


def _megabytes(entry: Entry) -> Cell:
    return Cell("-" if entry.temp_bytes is None else f"{entry.temp_bytes / 1e6:.1f}")


def _cells(
    m: Measurement, names: Iterable[str], cell: Callable[[Entry], Cell]
) -> list[Cell]:
    found = [m.entry(name) for name in names]
    return [Cell("") if e is None else cell(e) for e in found]


def target_table(report: Report) -> Table:
    """Every target on every case it applies to."""
    return Table("Targets", _TARGET_COLUMNS, tuple(map(_target_row, report.outcomes)))


def missed_table(report: Report) -> Table:
    """Every target on every case that missed it."""
    missed = [o for o in report.outcomes if o.reached is False]
    return Table(
        f"Targets missed: {len(missed) or 'none'}",
        _TARGET_COLUMNS,
        tuple(map(_target_row, missed)),
    )


def _target_row(outcome: Outcome) -> tuple[Cell, ...]:
    verdict = {
        True: Cell("reached", "good"),
        False: Cell("MISSED", "bad"),
        None: Cell(f"not measured: {outcome.reason}"),
    }[outcome.reached]
    return (
        Cell(outcome.target),
        Cell(outcome.case),
        Cell(WORK_NAMES[outcome.work]),
        Cell(f"{outcome.at_least:.2f}x"),
        Cell("-" if outcome.ratio is None else f"{outcome.ratio:.2f}x"),
        verdict,
    )


def target_summary(report: Report) -> Table:
    """One row a target: how often it was reached, and the worst case."""
    texts = dict.fromkeys(o.target for o in report.outcomes)
    return Table(
        "Targets, summed up",
        ("target", "reached", "missed", "not measured", "lowest"),
        tuple(
            _summary_row(text, [o for o in report.outcomes if o.target == text])
            for text in texts
        ),
    )


def _summary_row(text: str, outcomes: Sequence[Outcome]) -> tuple[Cell, ...]:
    missed = sum(o.reached is False for o in outcomes)
    measured = [(o.ratio, o.case) for o in outcomes if o.ratio is not None]
    lowest = min(measured, default=None)
    return (
        Cell(text),
        Cell(str(sum(o.reached is True for o in outcomes))),
        Cell(str(missed), "bad" if missed else "good"),
        Cell(str(sum(o.reached is None for o in outcomes))),
        Cell("-" if lowest is None else f"{lowest[0]:.2f}x {lowest[1]}"),
    )


def notes(report: Report) -> list[str]:
    """Why numbers are missing, each reason once with the cases it holds for."""
    cases: dict[str, dict[str, None]] = {}
    for m in report.measurements:
        for e in m.entries:
            if e.status != "timed":
                text = f"{e.name} {e.status}: {e.reason}"
                cases.setdefault(text, {})[m.case] = None
    return [f"{text}. Cases: {', '.join(names)}" for text, names in cases.items()]


def decisions(report: Report) -> Table:
    """What tokumx ran."""
    rows = [
        (Cell(m.case), Cell(WORK_NAMES[m.work]), Cell(m.entries[0].decision))
        for m in report.measurements
    ]
    return Table(
        "What tokumx ran", ("case", "direction", "implementation"), tuple(rows)
    )
