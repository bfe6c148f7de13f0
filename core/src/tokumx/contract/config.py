"""Config: the tunable numbers of one implementation, validated on creation."""

from dataclasses import dataclass
from typing import Literal

import pydantic

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


class Config(pydantic.BaseModel):
    """Frozen and hashable. Subclasses declare fields and their bounds.

    An unknown field or a value out of bounds raises pydantic.ValidationError,
    which is a ValueError.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    def __str__(self) -> str:
        return " ".join(f"{n}={v}" for n, v in self.model_dump().items()) or "-"


class NoConfig(Config):
    """For an implementation with nothing to tune."""


@dataclass(frozen=True)
class Configs:
    """Forward and backward configs of one call; None means look it up."""

    forward: Config | None = None
    backward: Config | None = None

    def get(self, direction: Direction) -> Config | None:
        return self.forward if direction == "forward" else self.backward

    def resolved(self, direction: Direction) -> Config:
        """The config of a direction that is known to have been looked up."""
        config = self.get(direction)
        assert config is not None, f"{direction} config was not looked up"
        return config
