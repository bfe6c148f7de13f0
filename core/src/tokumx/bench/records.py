"""What a run writes down: pydantic models of the JSON file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

FORMAT = "tokumx-bench"
FORMAT_VERSION = 1

Work = Literal["forward", "forward_backward"]
WORKS: tuple[Work, ...] = ("forward", "forward_backward")
Status = Literal["timed", "wrong", "failed", "absent"]
# JSON has no infinity; a result with a NaN has an infinite error.
Number = Annotated[float, pydantic.Field(allow_inf_nan=True)]


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings"
    )


class Environment(_Record):
    """The machine and the software of a run.

    `cores` are those this process may use; `load` is the one-minute load
    average when the run began.
    """

    device: str
    device_slug: str
    cores: int
    ram_gib: float
    os: str
    load: float
    variables: dict[str, str]
    versions: dict[str, str]
    commit: str | None
    date: str
    command: str


class Ceilings(_Record):
    """What this machine reached in this run, on all cores: GFLOP/s and GB/s."""

    matmul: float
    bandwidth: float

    def higher(self, other: "Ceilings") -> "Ceilings":
        """The better of two measurements: a busy moment is no ceiling."""
        return Ceilings(
            matmul=max(self.matmul, other.matmul),
            bandwidth=max(self.bandwidth, other.bandwidth),
        )


class Entry(_Record):
    """One contestant in one measurement.

    Attributes:
      reason: why there is no time; or what is worth knowing about it.
      error, allowed: largest error relative to the truth's largest magnitude,
        and what the numerics rule allows, of the array nearest its limit.
      median_us, spread_us, samples_us: microseconds a call.
      ratio, ratio_spread: its time over tokumx's, paired by round: how many
        times as fast tokumx is.
      temp_bytes: temporary memory, as the compiler reports it.
      decision: the implementation and configs that tokumx took.
    """

    name: str
    status: Status
    reason: str = ""
    error: Number | None = None
    allowed: Number | None = None
    median_us: float | None = None
    spread_us: float | None = None
    samples_us: tuple[float, ...] = ()
    ratio: float | None = None
    ratio_spread: float | None = None
    temp_bytes: int | None = None
    decision: str = ""


class Measurement(_Record):
    """One case, forward only or with its backward.

    Attributes:
      attained: GFLOP/s or GB/s of tokumx, over the work that is needed.
      ceiling: which of the run's ceilings applies.
    """

    case: str
    model: str
    kind: str
    dtype: str
    work: Work
    sizes: dict[str, int]
    options: dict[str, Any]
    entries: tuple[Entry, ...]
    attained: float | None
    ceiling: Literal["matmul", "bandwidth"]

    def entry(self, name: str) -> Entry | None:
        """The contestant of that name, if it was asked to take part."""
        return next((e for e in self.entries if e.name == name), None)


class Outcome(_Record):
    """One target on one measurement; `reached` is None if it has no number."""

    target: str
    peer: str
    case: str
    work: Work
    at_least: float
    ratio: float | None
    reached: bool | None
    reason: str = ""


class Report(_Record):
    """A whole run."""

    format: Literal["tokumx-bench"] = FORMAT
    version: Literal[1] = FORMAT_VERSION
    benchmark: str
    title: str
    remarks: tuple[str, ...]
    distribution: str
    settings: dict[str, Any]
    environment: Environment
    ceilings: Ceilings
    measurements: tuple[Measurement, ...]
    outcomes: tuple[Outcome, ...]
    seconds: float

    def save(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Report":
        """Reads what `save` wrote.

        Raises:
          ValueError: the file is of another format or version.
        """
        return cls.model_validate_json(path.read_bytes())

    def share(self, measurement: Measurement) -> float | None:
        """Attained speed over the ceiling that applies."""
        attained = measurement.attained
        ceiling: float = getattr(self.ceilings, measurement.ceiling)
        return None if attained is None else attained / ceiling

    @property
    def peers(self) -> tuple[str, ...]:
        """Every contestant but the first, tokumx, in order of appearance."""
        names = [e.name for m in self.measurements for e in m.entries]
        return tuple(dict.fromkeys(names))[1:]

    def failures_of(self, name: str) -> Sequence[tuple[Measurement, Entry]]:
        """Where a contestant gave wrong numbers, or none at all."""
        found = ((m, m.entry(name)) for m in self.measurements)
        return [(m, e) for m, e in found if e and e.status in ("wrong", "failed")]
