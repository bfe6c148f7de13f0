"""Judges measurements by their targets."""

from collections.abc import Iterable, Sequence

from tokumx.bench.case import Target
from tokumx.bench.records import Entry, Measurement, Outcome


def judge_targets(
    targets: Iterable[Target], measurements: Sequence[Measurement]
) -> tuple[Outcome, ...]:
    """Every target on every measurement that it applies to."""
    return tuple(
        _outcome(target, measurement)
        for target in targets
        for measurement in measurements
        if target.applies(measurement)
    )


def _outcome(target: Target, measurement: Measurement) -> Outcome:
    entry = measurement.entry(target.peer)
    ratio = None if entry is None else entry.ratio
    return Outcome(
        target=target.text,
        peer=target.peer,
        case=measurement.case,
        work=measurement.work,
        at_least=target.at_least,
        ratio=ratio,
        reached=None if ratio is None else ratio >= target.at_least,
        reason=_why_no_ratio(target.peer, entry, measurement),
    )


def _why_no_ratio(peer: str, entry: Entry | None, measurement: Measurement) -> str:
    if entry is not None and entry.ratio is not None:
        return ""
    if entry is None:
        return f"{peer} was not asked to take part"
    if entry.status != "timed":
        return f"{peer} {entry.status}: {entry.reason}"
    subject = measurement.entries[0]
    return f"{subject.name} {subject.status}: {subject.reason}"
