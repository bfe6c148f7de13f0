"""Says what the dispatcher decides, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokumx.capture.trace import TracedCall, trace_calls
from tokumx.contract import DIRECTIONS


@dataclass(frozen=True)
class Explanation:
    """The decisions behind a function's tokumx calls; print it."""

    calls: tuple[TracedCall, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """JSON values, one entry a call."""
        return [_to_json(c) for c in self.calls]

    def __str__(self) -> str:
        if not self.calls:
            return "no tokumx call was found"
        return "\n\n".join(_text(c) for c in self.calls)

    __repr__ = __str__


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Which implementation each tokumx call inside fn takes, and why.

    Args:
      fn: an op, or any function that calls some; it is traced, not run.
      *args, **kwargs: its arguments; jax.ShapeDtypeStruct will do for arrays.

    Returns:
      An Explanation: for each distinct call the implementation, its configs
      and where they came from, and why each other implementation was not
      taken.
    """
    return Explanation(tuple(trace_calls(fn, *args, **kwargs)))


def _text(call: TracedCall) -> str:
    directions = " and ".join(d for d in DIRECTIONS if d in call.directions)
    times = "once" if call.count == 1 else f"{call.count} times"
    return f"{call.decision}\n  called {times}, {directions}"


def _to_json(call: TracedCall) -> dict[str, Any]:
    decision = call.decision
    return {
        "call": decision.call.to_json(),
        "device": str(decision.device),
        "implementation": decision.implementation,
        "reason": decision.reason,
        "configs": {
            d: config.model_dump() if (config := decision.configs.get(d)) else None
            for d in DIRECTIONS
        },
        "sources": dict(decision.sources),
        "rejected": dict(decision.rejected),
        "directions": sorted(call.directions),
        "count": call.count,
    }
