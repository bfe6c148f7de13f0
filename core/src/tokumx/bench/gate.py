"""The numerics gate: no contestant gets a number for a wrong result."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.bench.case import SUBJECT, Arrays, Case
from tokumx.bench.records import Work
from tokumx.bench.steps import GRADIENT, cast_floats, step_function
from tokumx.numerics import Comparison, budget_for, compare

# The budgets are promises of tokumx. A peer sums in an order of its own choice,
# and is refused for other numbers than the definition's, not for that: XLA's
# plain matrix-vector product of 4096 terms errs by 3.9 times its batched one.
PEER_SLACK = 4.0
Results = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """The comparison nearest its limit, or past it."""

    worst: Comparison

    @property
    def ok(self) -> bool:
        return self.worst.ok


class Gate:
    """Judges results of one case by the rule in numerics/budgets.py.

    The truth is the case's reference on float64 copies of the inputs; the
    error that may be made is bounded by that of the reference in the case's
    own dtype, whoever is judged; peers get PEER_SLACK times the budget.
    """

    def __init__(self, case: Case, arrays: Arrays, cotangent: jax.Array, work: Work):
        self._case = case
        step = step_function(case.reference, case, work)
        self._naive = jax.device_get(jax.jit(step)(dict(arrays), cotangent))
        with jax.enable_x64(True):
            wide = cast_floats(arrays, jnp.float64)
            results = jax.jit(step)(wide, cotangent.astype(jnp.float64))
            self._truth = jax.device_get(results)

    def judge(self, contestant: str, results: Results) -> Verdict:
        """Compares everything that a contestant returned: the output, and
        gradients if there are any."""
        slack = 1.0 if contestant.startswith(SUBJECT) else PEER_SLACK
        comparisons = [self._compare(n, x, slack) for n, x in results.items()]
        return Verdict(max(comparisons, key=_nearness))

    def _compare(self, name: str, actual: Any, slack: float) -> Comparison:
        actual = np.asarray(actual)
        naive = self._naive[name]
        if actual.dtype != naive.dtype and _is_float(actual) and _is_float(naive):
            actual = actual.astype(naive.dtype)  # InProcess.input_dtype
        direction = "backward" if name.startswith(GRADIENT) else "forward"
        budget = budget_for(self._case.op, naive.dtype.name, direction)
        budget = replace(
            budget, factor=budget.factor * slack, floor=budget.floor * slack
        )
        return compare(name, actual, naive, self._truth[name], budget)


def _is_float(x: np.ndarray) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _nearness(comparison: Comparison) -> float:
    """Above 1 for a wrong result."""
    if comparison.problem or not comparison.allowed:
        return np.inf if not comparison.ok else 0.0
    return comparison.error / comparison.allowed
