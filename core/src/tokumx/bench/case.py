"""What a benchmark of an op gives the runner: cases, contestants, targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from tokumx.bench.records import Measurement, Work

Arrays = Mapping[str, jax.Array]
SUBJECT = "tokumx"  # the contestant that the others are compared with


@dataclass(frozen=True)
class InProcess:
    """A contestant that jax compiles.

    Attributes:
      name: column of the report.
      function: from the case's arrays to its output, or outputs of one shape.
      input_dtype: what floating inputs are cast to beforehand, untimed; None
        leaves them in the case's dtype. The output is judged in the case's.
    """

    name: str
    function: Callable[[Arrays], Any]
    input_dtype: str | None = None


@dataclass(frozen=True)
class InTorch:
    """A contestant that torch_worker.py runs in its own process.

    Attributes:
      operation: a key of OPERATIONS over there.
      options: JSON values, passed on.
    """

    name: str
    operation: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Absent:
    """A contestant that cannot take part, and why."""

    name: str
    reason: str


Contestant = InProcess | InTorch | Absent


@dataclass(frozen=True)
class Case:
    """One shape of an op, and who computes it.

    Attributes:
      name: unique within the benchmark.
      model: whose shape it is.
      kind: "prefill", "decode", ...; what targets select by.
      op: key of the numerics budgets.
      dtype: of inputs and output.
      sizes, options: for the record.
      works: what can be measured: forward, forward and backward.
      make_arrays: the operands.
      reference: the definition, which runs in any floating dtype.
      contestants: one of them is named "tokumx".
      differentiable: arrays whose gradients a backward computes.
      flops: needed for each work, masked work left out.
      bytes_moved: the least traffic of a forward.
      bound_by: the ceiling that the attained speed is compared with.
    """

    name: str
    model: str
    kind: str
    op: str
    dtype: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    works: tuple[Work, ...]
    make_arrays: Callable[[], Arrays]
    reference: Callable[[Arrays], Any]
    contestants: Callable[[], Sequence[Contestant]]
    differentiable: tuple[str, ...]
    flops: Mapping[Work, int]
    bytes_moved: int
    bound_by: Literal["matmul", "bandwidth"]


@dataclass(frozen=True)
class Target:
    """A speed that is promised.

    Attributes:
      text: the promise.
      peer: the contestant that tokumx is compared with.
      at_least: its time over tokumx's.
      applies: to which measurements.
    """

    text: str
    peer: str
    at_least: float
    applies: Callable[[Measurement], bool]


@dataclass(frozen=True)
class Benchmark:
    """One op's cases and targets.

    Attributes:
      name: of the result files.
      title: of the report.
      cases: all of them.
      quick: names of those in the quick suite.
      targets: what is promised of them.
      remarks: what a reader must know to judge the numbers.
    """

    name: str
    title: str
    cases: Sequence[Case]
    quick: frozenset[str]
    targets: Sequence[Target]
    remarks: Sequence[str] = ()
