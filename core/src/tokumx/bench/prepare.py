"""Makes a contestant ready to be judged and timed: compiled, with its results."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tokumx.bench.case import (
    SUBJECT,
    Absent,
    Arrays,
    Case,
    Contestant,
    InProcess,
    InTorch,
)
from tokumx.bench.records import Entry, Work
from tokumx.bench.steps import cast_floats, step_function
from tokumx.bench.timer import Timed
from tokumx.bench.torch_process import TorchError, TorchProcess
from tokumx.dispatch import recall


@dataclass(frozen=True)
class Prepared:
    """A contestant that ran once.

    Attributes:
      results: of that run, by name.
      temp_bytes: temporary memory, or None if the compiler does not say.
      decision: what tokumx decided, one line; empty for the others.
    """

    name: str
    timed: Timed
    results: dict[str, np.ndarray]
    temp_bytes: int | None = None
    decision: str = ""


@dataclass(frozen=True)
class Operands:
    """The numbers of one case, the same for every contestant."""

    case: Case
    arrays: Arrays
    cotangent: jax.Array


def prepare(
    contestant: Contestant,
    operands: Operands,
    work: Work,
    torch: TorchProcess | Absent,
) -> Prepared | Entry:
    """The contestant after its first run, or the entry that says why not.

    Whatever a contestant raises becomes its entry: one that cannot run a case
    must not keep the others from being measured, and the report shows it.
    """
    if isinstance(contestant, Absent):
        return Entry(name=contestant.name, status="absent", reason=contestant.reason)
    if isinstance(contestant, InTorch):
        if isinstance(torch, Absent):
            return Entry(name=contestant.name, status="absent", reason=torch.reason)
        return _attempt(contestant.name, lambda: _torch(contestant, work, torch))
    return _attempt(contestant.name, lambda: _compiled(contestant, operands, work))


def _attempt(name: str, build: Callable[[], Prepared]) -> Prepared | Entry:
    try:
        return build()
    except TorchError as error:
        reason = str(error)
    except Exception as error:  # whatever a contestant throws
        first = (str(error).splitlines() or [""])[0]
        reason = f"{type(error).__name__}: {first}"
    return Entry(name=name, status="failed", reason=reason[:300])


def _torch(contestant: InTorch, work: Work, torch: TorchProcess) -> Prepared:
    return Prepared(contestant.name, torch.timed(work), torch.results(work))


def _compiled(contestant: InProcess, operands: Operands, work: Work) -> Prepared:
    case, cotangent = operands.case, operands.cotangent
    arrays: dict[str, Any] = dict(operands.arrays)
    if contestant.input_dtype is not None:
        arrays = cast_floats(arrays, contestant.input_dtype)
        cotangent = cotangent.astype(contestant.input_dtype)
    step = step_function(contestant.function, case, work)
    lowered = jax.jit(step).lower(arrays, cotangent)
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    return Prepared(
        name=contestant.name,
        timed=lambda: compiled(arrays, cotangent),
        results=jax.device_get(compiled(arrays, cotangent)),
        temp_bytes=None if memory is None else memory.temp_size_in_bytes,
        decision=_decision(lowered) if contestant.name.startswith(SUBJECT) else "",
    )


def _decision(lowered: jax.stages.Lowered) -> str:
    """The implementation and configs, read back from names in the program."""
    digests = re.findall(r"\btokumx_\w+?_([0-9a-f]{12})\b", lowered.as_text())
    found = filter(None, map(recall, dict.fromkeys(digests)))
    return "; ".join(
        f"{d.implementation} ({d.configs.forward}; backward {d.configs.backward})"
        for d in found
    )
