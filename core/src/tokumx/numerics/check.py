"""Runs a kernel beside the plain implementation and float64 truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import Config, Configs
from tokumx.dispatch import Preference
from tokumx.numerics.budgets import Budget, budget_for

NAIVE = "xla"


@dataclass(frozen=True)
class Comparison:
    """One array's verdict.

    Errors are relative to the truth's largest magnitude; `problem` says what
    else is wrong (a NaN, a shape, a dtype), or is empty.
    """

    name: str
    dtype: str
    error: float
    naive_error: float
    allowed: float
    problem: str

    @property
    def ok(self) -> bool:
        return not self.problem and self.error <= self.allowed

    def __str__(self) -> str:
        verdict = "ok" if self.ok else f"WRONG {self.problem}".rstrip()
        return (
            f"{self.name} {self.dtype}: error {self.error:.2e}, naive "
            f"{self.naive_error:.2e}, allowed {self.allowed:.2e}: {verdict}"
        )


@dataclass(frozen=True)
class Report:
    """The verdicts of one check."""

    title: str
    comparisons: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.comparisons)

    def raise_if_wrong(self) -> "Report":
        """Returns itself, or raises AssertionError with every verdict."""
        if not self.ok:
            raise AssertionError(str(self))
        return self

    def __str__(self) -> str:
        return "\n  ".join([self.title, *map(str, self.comparisons)])


def compare(
    name: str, actual: Any, naive: Any, truth: Any, budget: Budget
) -> Comparison:
    """Judges one array by the rule in budgets.py.

    Args:
      actual: the kernel's result.
      naive: the plain implementation's, in the same dtype.
      truth: the result in float64 (or float32), same shape.
    """
    dtype = np.dtype(actual.dtype).name
    problem = _shape_problem(actual, naive, truth)
    if problem:
        return Comparison(name, dtype, np.inf, np.inf, 0.0, problem)
    wide = np.asarray(truth, np.float64)
    finite = np.isfinite(wide)
    scale = np.abs(wide[finite]).max(initial=0.0) or 1.0

    def error(x: Any) -> tuple[float, str]:
        x = np.asarray(x, np.float64)
        if not np.array_equal(x[~finite], wide[~finite], equal_nan=True):
            return np.inf, "where the truth is not finite"
        deviation = np.abs(x[finite] - wide[finite]) / scale
        if not np.isfinite(deviation).all():
            return np.inf, "not finite where the truth is"
        return deviation.max(initial=0.0), ""

    kernel_error, problem = error(actual)
    naive_error, _ = error(naive)
    eps = float(jnp.finfo(actual.dtype).eps)
    bound = naive_error if np.isfinite(naive_error) else 0.0
    allowed = bound * budget.factor + budget.floor * eps
    return Comparison(name, dtype, kernel_error, naive_error, allowed, problem)


def _shape_problem(actual: Any, naive: Any, truth: Any) -> str:
    if not actual.shape == naive.shape == truth.shape:
        return f"shape {actual.shape}, naive {naive.shape}, truth {truth.shape}"
    if actual.dtype != naive.dtype:
        return f"dtype {actual.dtype}, naive {naive.dtype}"
    return ""


def check(
    fn: Callable[..., Any],
    *args: Any,
    implementation: Preference = None,
    config: Config | Configs | None = None,
    gradients: bool = True,
    seed: int = 0,
    **kwargs: Any,
) -> Report:
    """Checks a tokumx op on one call, its outputs and its gradients.

    The same function runs three times: as asked for, with
    implementation="xla", and with "xla" on float64 copies of the floating
    arguments; as asked for also without being differentiated. Gradients are
    those of a random cotangent, for every floating array among the arguments.
    Memory that the results may reuse is filled with NaN first.

    Args:
      fn: a public op, e.g. tokumx.dot_product_attention.
      *args, **kwargs: its arguments.
      implementation, config: what to check.
      gradients: also check gradients.
      seed: of the cotangent.

    Returns:
      A Report; call raise_if_wrong() to fail on it.
    """
    name = getattr(fn, "__name__", "op")

    def run(wide: bool, **how: Any) -> dict[str, Any]:
        with jax.enable_x64(wide):
            operands, rebuild = _split(args, kwargs, wide)
            outputs = lambda xs: _named(rebuild(fn, xs, how))  # noqa: E731
            if not gradients:
                return outputs(operands)
            results, pull_back = jax.vjp(outputs, operands)
            (pulled,) = pull_back(_cotangent(results, seed))
            grads = {f"d_{n}": g for n, g in pulled.items()}
            return jax.device_get({**results, **grads})

    truth = run(True, implementation=NAIVE)
    naive = run(False, implementation=NAIVE)
    _poison(naive)
    actual = run(False, implementation=implementation, config=config)
    comparisons = _compare_all(name, actual, naive, truth)
    title = f"{name} {implementation or 'default'}"
    if not gradients:
        return Report(title, comparisons)
    # A call that is not differentiated may run another kernel.
    alone = jax.device_get(
        _named(fn(*args, **kwargs, implementation=implementation, config=config))
    )
    again = _compare_all(name, alone, naive, truth)
    again = tuple(replace(c, name=f"{c.name}, not differentiated") for c in again)
    return Report(title, comparisons + again)


def _compare_all(
    op: str,
    actual: Mapping[str, Any],
    naive: Mapping[str, Any],
    truth: Mapping[str, Any],
) -> tuple[Comparison, ...]:
    comparisons = []
    for n, x in actual.items():
        direction = "backward" if n.startswith("d_") else "forward"
        budget = budget_for(op, np.dtype(x.dtype).name, direction)
        comparisons.append(compare(n, x, naive[n], truth[n], budget))
    return tuple(comparisons)


def _split(
    args: Sequence[Any], kwargs: Mapping[str, Any], wide: bool
) -> tuple[dict[str, jax.Array], Callable[..., Any]]:
    """The floating arrays among the arguments by name, and how to call with
    others in their place."""
    given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    operands = {
        _label(n): x.astype(jnp.float64) if wide else jnp.asarray(x)
        for n, x in given.items()
        if _is_floating(x)
    }

    def rebuild(
        fn: Callable[..., Any], xs: Mapping[str, Any], how: Mapping[str, Any]
    ) -> Any:
        full = {n: xs.get(_label(n), x) for n, x in given.items()}
        positional = [full.pop(i) for i in range(len(args))]
        return fn(*positional, **full, **how)  # type: ignore[arg-type]

    return operands, rebuild


def _label(n: int | str) -> str:
    return n if isinstance(n, str) else f"arg{n}"


def _is_floating(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(
        x.dtype, jnp.floating
    )


def _named(outputs: Any) -> dict[str, Any]:
    leaves = jax.tree.leaves(outputs)
    return {f"out{i}" if i else "out": x for i, x in enumerate(leaves)}


def _cotangent(results: Mapping[str, jax.Array], seed: int) -> dict[str, jax.Array]:
    """The same numbers in every dtype; zero where a result is not finite."""
    rng = np.random.default_rng(seed)
    out = {}
    for n, x in results.items():
        values = rng.standard_normal(x.shape).astype(np.float32)
        # Rounded to bfloat16, so that every dtype is given the same values.
        values = values.astype(jnp.bfloat16).astype(x.dtype)
        out[n] = jnp.where(jnp.isfinite(x), values, 0).astype(x.dtype)
    return out


def _poison(like: Mapping[str, Any]) -> None:
    """Frees NaN-filled buffers of the results' sizes, which a kernel that does
    not write its whole output is then likely to return."""
    buffers = [
        jnp.full(np.shape(x), jnp.nan, x.dtype) for x in like.values() for _ in range(2)
    ]
    jax.block_until_ready(buffers)
    for b in buffers:
        b.delete()
