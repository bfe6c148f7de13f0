"""OpSpec: an op's name, the axes of its arrays, and its implementations."""

import difflib
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import jax

from tokumx.contract.call_spec import CallSpec
from tokumx.contract.device import DeviceSpec
from tokumx.contract.implementation import Implementation

# Implementation names, fastest first, each with the reason for its place.
Ranking = Sequence[tuple[str, str]]
_ANY = "..."


@dataclass(frozen=True, eq=False)
class OpSpec:
    """What the dispatcher needs to know about an op.

    Attributes:
      name: the public function's name.
      axes: for each array, and each output, its axes as single letters with
        one space between: `"b t n h"`. A leading `...` stands for any number
        of axes, the same in every array that has it: `"... d"`. Where the
        first axis of every array is the batch `b`, of the batch size or 1,
        vmap of a `local` implementation is one call with a larger batch.
        Arrays of size 1 along an axis are broadcast along it.
      outputs: names of the outputs, in order.
      sharded_axes: axes that devices may split, each a batch of independent
        problems, mapped to the axis letters that are split together with it
        (query heads follow key heads). `"...": "..."` names each of the axes
        that `...` stands for. An output without a split axis is a sum over it.
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

    def letters(self, call: CallSpec) -> tuple[dict[str, str], dict[str, str]]:
        """`axes` and `sharded_axes` with `...` written out for a call's ranks."""
        leading = " ".join(string.ascii_uppercase[: self._leading_axes(call)])
        axes = {n: text.replace(_ANY, leading).strip() for n, text in self.axes.items()}
        sharded = {k: v for k, v in self.sharded_axes.items() if k != _ANY}
        if _ANY in self.sharded_axes:
            sharded |= {letter: letter for letter in leading.split()}
        return axes, sharded

    def _leading_axes(self, call: CallSpec) -> int:
        counts = {
            call[n].ndim - len(self.axes[n].split()) + 1
            for n in call
            if self.axes[n].startswith(_ANY)
        }
        assert len(counts) <= 1, f"{self.name}: arrays differ in leading axes"
        return counts.pop() if counts else 0

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
