"""One candidate's way through the search: built, judged, timed."""

from dataclasses import dataclass, replace

from tokumx.contract import CallSpec, Config, Direction


@dataclass(frozen=True)
class Trial:
    """What happened to one config.

    Attributes:
      time_us, spread_us: median and median absolute deviation; None if it
        was not timed.
      outcome: "won", "slower", or why it could not win: a compile error, wrong
        numbers, a first time far behind the best.
    """

    call: CallSpec
    implementation: str
    direction: Direction
    config: Config
    is_default: bool
    outcome: str = ""
    time_us: float | None = None
    spread_us: float | None = None

    def ended(self, outcome: str) -> "Trial":
        return replace(self, outcome=outcome)

    def timed(self, time_us: float, spread_us: float) -> "Trial":
        return replace(self, time_us=time_us, spread_us=spread_us)

    def __str__(self) -> str:
        time = "" if self.time_us is None else f" {self.time_us:.1f} us"
        default = " (default)" if self.is_default else ""
        return (
            f"{self.implementation} {self.direction} {self.config}{default}:"
            f"{time} {self.outcome}"
        )
