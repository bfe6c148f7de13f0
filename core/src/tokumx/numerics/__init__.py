"""Is a kernel right? Errors against wide truth, judged by one table of budgets."""

from tokumx.numerics.budgets import Budget, budget_for
from tokumx.numerics.check import Comparison, Report, check, compare
from tokumx.numerics.distributions import DISTRIBUTIONS, sample

__all__ = [
    "DISTRIBUTIONS",
    "Budget",
    "Comparison",
    "Report",
    "budget_for",
    "check",
    "compare",
    "sample",
]
