"""Decision: which implementation runs a call, with which configs, and why."""

import functools
import hashlib
from dataclasses import dataclass

from tokumx.contract import DIRECTIONS, CallSpec, Configs, DeviceSpec, Direction


@dataclass(frozen=True)
class Decision:
    """What the dispatcher decided for one call.

    Attributes:
      call: the call.
      device: the device it was decided for.
      implementation: the name of the one taken.
      configs: its forward and backward configs, both resolved.
      sources: where each config came from, by direction.
      reason: why this implementation.
      rejected: every other implementation's name, and why not.
    """

    call: CallSpec
    device: DeviceSpec
    implementation: str
    configs: Configs
    sources: tuple[tuple[Direction, str], ...]
    reason: str
    rejected: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Names what runs, however it came to be chosen."""
        return digest_of(self.call, self.implementation, self.configs)

    def source(self, direction: Direction) -> str:
        return dict(self.sources)[direction]

    def __str__(self) -> str:
        lines = [
            str(self.call),
            f"  device          {self.device}",
            f"  implementation  {self.implementation}: {self.reason}",
        ]
        for direction in DIRECTIONS:
            config = self.configs.get(direction)
            lines.append(f"  {direction:<15} {config}  ({self.source(direction)})")
        lines += [f"  not {name:<11} {reason}" for name, reason in self.rejected]
        return "\n".join(lines)


@functools.lru_cache(maxsize=4096)
def digest_of(call: CallSpec, implementation: str, configs: Configs) -> str:
    """Twelve hex digits for a call, an implementation and its configs."""
    text = f"{call.key}|{implementation}|{configs}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_decisions: dict[str, Decision] = {}


def remember(decision: Decision) -> None:
    """Keeps the decision, so that its digest in a jaxpr can be read back."""
    _decisions[decision.digest] = decision


def recall(digest: str) -> Decision | None:
    return _decisions.get(digest)
