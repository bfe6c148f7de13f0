"""OpSpec: an op's name, the axes of its arrays, and its implementations."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax

from tokumx.contract.call_spec import CallSpec
from tokumx.contract.device import DeviceSpec
from tokumx.contract.implementation import Implementation

# Implementation names, fastest first, each with the reason for its place.
Ranking = Sequence[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class OpSpec:
    """What the dispatcher needs to know about an op.

    Attributes:
      name: the public function's name.
      axes: for each array, and each output, its axes as single letters with
        one space between: `"b t n h"`. In an op with a `local`
        implementation the first axis of every array is the batch `b`, of the
        batch size or 1. Arrays of size 1 along an axis are
        broadcast along it.
      outputs: names of the outputs, in order.
      sharded_axes: axes that devices may split, each a batch of independent
        problems, mapped to the axis letters that are split together with it
        (query heads follow key heads).
      graded_outputs: the outputs that callers see; the others only serve the
        backward, and have no gradient.
      differentiable: names of the arrays that have gradients.
      implementations: every implementation. The last one is the reference,
        which accepts every valid call.
      rank: the order of expected speed for a call, without measurements.
      make_arrays: representative operands for a call and a seed.
      examples: typical calls in a dtype, to ask what runs where.
    """

    name: str
    axes: Mapping[str, str]
    outputs: tuple[str, ...]
    graded_outputs: tuple[str, ...]
    sharded_axes: Mapping[str, str]
    differentiable: tuple[str, ...]
    implementations: tuple[Implementation, ...]
    rank: Callable[[CallSpec, DeviceSpec], Ranking]
    make_arrays: Callable[[CallSpec, int], Mapping[str, jax.Array]]
    examples: Callable[[str], Sequence[CallSpec]] = lambda _: ()
    _by_name: dict[str, Implementation] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_name = {i.name: i for i in self.implementations}
        assert len(by_name) == len(self.implementations), "duplicate names"
        object.__setattr__(self, "_by_name", by_name)

    @property
    def reference(self) -> Implementation:
        return self.implementations[-1]

    def implementation(self, name: str) -> Implementation:
        """The implementation of that name.

        Raises:
          ValueError: there is none; the message gives the closest name.
        """
        found = self._by_name.get(name)
        if found is not None:
            return found
        close = difflib.get_close_matches(str(name), self._by_name, n=1, cutoff=0.4)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"{self.name}: implementation must be None or among "
            f"{', '.join(self._by_name)}; got {name!r}.{hint}"
        )
