"""Finds tokumx calls in a function by tracing it and reading its jaxpr.

Each call is a jitted function whose name holds its decision's digest, also
inside loops, branches, remat, shard_map, and functions jitted before.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from tokumx.contract import Direction
from tokumx.dispatch import Decision, recall
from tokumx.dispatch.run import BACKWARD_SUFFIX, NAME_PREFIX, residual_name

_NAME = re.compile(rf"{NAME_PREFIX}.*_([0-9a-f]{{12}})({BACKWARD_SUFFIX})?$")

_Found = tuple[Decision, Direction, int]


@dataclass(frozen=True)
class TracedCall:
    """A decision met in a trace, in which directions, and how often.

    `count` multiplies by the length of scans around the call; a while loop
    counts once.
    """

    decision: Decision
    directions: frozenset[Direction]
    count: int


def trace_calls(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[TracedCall]:
    """The distinct tokumx calls that fn(*args, **kwargs) makes, in order.

    Args:
      fn: any function that jax can trace; it is not run.
      *args, **kwargs: its arguments. Arrays and ShapeDtypeStructs, also inside
        pytrees, are traced; everything else is passed on as it is.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_array = [hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves]

    def flat(*arrays: Any) -> Any:
        traced = iter(arrays)
        merged = [
            next(traced) if a else x for x, a in zip(leaves, is_array, strict=True)
        ]
        call_args, call_kwargs = jax.tree.unflatten(tree, merged)
        return fn(*call_args, **call_kwargs)

    arrays = [x for x, a in zip(leaves, is_array, strict=True) if a]
    jaxpr = jax.make_jaxpr(flat)(*arrays)
    return _merge(_walk(jaxpr.jaxpr, 1))


def _merge(found: Iterator[_Found]) -> list[TracedCall]:
    directions: dict[str, set[Direction]] = {}
    counts: dict[str, int] = {}
    decisions: dict[str, Decision] = {}
    for decision, direction, times in found:
        digest = decision.digest
        decisions[digest] = decision
        directions.setdefault(digest, {"forward"}).add(direction)
        if direction == "forward":
            counts[digest] = counts.get(digest, 0) + times
    return [
        TracedCall(d, frozenset(directions[n]), counts.get(n, 1))
        for n, d in decisions.items()
    ]


def _walk(jaxpr: Any, times: int) -> Iterator[_Found]:
    for equation in jaxpr.eqns:
        is_scan = equation.primitive.name == "scan"
        inner_times = times * int(equation.params["length"]) if is_scan else times
        bodies = [s for value in equation.params.values() for s in _jaxprs(value)]
        inner = [found for body in bodies for found in _walk(body, inner_times)]
        match = _NAME.fullmatch(str(equation.params.get("name", "")))
        decision = recall(match[1]) if match else None
        if match is not None and decision is not None and not inner:
            # Differentiation leaves calls of the same name: one without the
            # mark of a forward pass is a transpose, one without a body had its
            # results saved by a remat policy.
            if match[2] or not any(_is_forward(body, decision) for body in bodies):
                direction = "backward"
            else:
                direction = "forward"
            if any(body.eqns for body in bodies):
                yield decision, direction, times
        yield from inner


def _is_forward(jaxpr: Any, decision: Decision) -> bool:
    mark = residual_name(decision.call.op)
    return any(
        (e.primitive.name == "name" and e.params["name"] == mark)
        or any(
            _is_forward(body, decision)
            for value in e.params.values()
            for body in _jaxprs(value)
        )
        for e in jaxpr.eqns
    )


def _jaxprs(value: Any) -> Iterator[Any]:
    if hasattr(value, "eqns"):
        yield getattr(value, "jaxpr", value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _jaxprs(item)
