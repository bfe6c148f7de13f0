"""Implementation: one way to compute an op, removable alone."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokumx.contract.call_spec import CallSpec
from tokumx.contract.config import Config, Direction
from tokumx.contract.device import DeviceSpec

Arrays = Mapping[str, Any]
Outputs = dict[str, Any]
Forward = Callable[[Arrays, CallSpec, Config], Outputs]
# (arrays, outputs of forward, cotangents of outputs, call, config) -> gradients
Backward = Callable[[Arrays, Outputs, Outputs, CallSpec, Config], Outputs]


@dataclass(frozen=True, eq=False)
class Implementation:
    """The functions of one implementation file, under its stable name.

    `forward` and `backward` take shapes from the arrays they are given, and
    only options from the CallSpec: under vmap and sharding they run on
    another batch size or head count than the caller's.

    Attributes:
      name: stable id, used by callers and as the key of tuned files.
      config: the type of its configs.
      unsupported: why this call cannot run on this device, or None.
      heuristic_config: a good config without any measurement.
      search_space: configs worth timing; the heuristic's is always tried too.
      forward: arrays to outputs.
      backward: gradients by array name, or None to let jax differentiate
        `forward`.
      inference: a faster `forward` for calls that are not differentiated, with
        the same outputs; None if there is none.
      local: loops over batch or heads, so XLA cannot split it over devices
        by itself; the dispatcher runs it on each device's own part.
      forward_only: `backward` only says that there is none.
      stand_in: of one made of custom calls: the implementation with the same
        outputs that takes its place in a module for export. It supports every
        call that this one does.
    """

    name: str
    config: type[Config]
    unsupported: Callable[[CallSpec, DeviceSpec], str | None]
    heuristic_config: Callable[[CallSpec, DeviceSpec, Direction], Config]
    search_space: Callable[[CallSpec, DeviceSpec, Direction], Sequence[Config]]
    forward: Forward
    backward: Backward | None
    inference: Forward | None
    local: bool
    forward_only: bool = False
    stand_in: "Implementation | None" = None

    @classmethod
    def of_module(cls, name: str, module: types.ModuleType) -> "Implementation":
        """Collects the functions that an implementation file defines."""
        stand_in = getattr(module, "STAND_IN", None)
        return cls(
            name=name,
            config=module.Config,
            unsupported=module.unsupported,
            heuristic_config=module.heuristic_config,
            search_space=module.search_space,
            forward=module.forward,
            backward=getattr(module, "backward", None),
            inference=getattr(module, "inference", None),
            local=module.LOCAL,
            forward_only=getattr(module, "FORWARD_ONLY", False),
            stand_in=stand_in and cls.of_module(f"{name}_stand_in", stand_in),
        )
