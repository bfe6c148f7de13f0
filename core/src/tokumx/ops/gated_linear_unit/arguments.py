"""Checks the arguments of gated linear units and names their arrays."""

import difflib
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.contract import ArraySpec
from tokumx.contract.call_spec import OptionValue
from tokumx.ops.gated_linear_unit.gating import ACTIVATION_NAMES, SWIGLU_OAI

GLU = "gated_linear_unit"
DOWN = "gated_linear_unit_down"
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_LIMIT, _ALPHA = 7.0, 1.702  # of swiglu_oai
# What others call them.
_OTHER_NAMES = {
    "swish": "silu",
    "swiglu": "silu",
    "geglu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_approx": "gelu_tanh",
    "reglu": "relu",
}


def _fail(rule: str, got: str, advice: str) -> ValueError:
    return ValueError(f"{GLU}: {rule}; got {got}. {advice}")


def glu_options(
    activation: Any, limit: float | None, alpha: float | None
) -> dict[str, OptionValue]:
    """The static options, defaults filled in."""
    if activation not in ACTIVATION_NAMES:
        raise _fail(
            f"activation must be among {', '.join(ACTIVATION_NAMES)}",
            repr(activation),
            _closest(activation),
        )
    _check_number("limit", limit, is_positive=True)
    _check_number("alpha", alpha, is_positive=False)
    is_oai = activation == SWIGLU_OAI
    if alpha is not None and not is_oai:
        raise _fail(
            f"alpha is for activation='{SWIGLU_OAI}' only",
            f"alpha={alpha} activation={activation!r}",
            "Leave it out.",
        )
    if is_oai:
        limit = _LIMIT if limit is None else limit
        alpha = _ALPHA if alpha is None else alpha
    return {
        "activation": activation,
        "limit": None if limit is None else float(limit),
        "alpha": None if alpha is None else float(alpha),
    }


def _closest(activation: Any) -> str:
    known = _OTHER_NAMES.get(activation) if isinstance(activation, str) else None
    close = difflib.get_close_matches(str(activation), ACTIVATION_NAMES, 1)
    meant = known or (close[0] if close else None)
    return f"Did you mean {meant!r}?" if meant else "Pass one of these names."


def _check_number(name: str, value: Any, is_positive: bool) -> None:
    if value is None:
        return
    is_right = isinstance(value, numbers.Real) and math.isfinite(value)
    if not is_right or (is_positive and value <= 0):
        kind = "a positive number" if is_positive else "a finite number"
        raise _fail(
            f"{name} must be None or {kind}",
            f"{name}={value!r}",
            "Pass a Python float.",
        )


class Checked:
    """x and the weights, checked, and checks of the others against them."""

    def __init__(self, x: Any, weights: Any):
        self.x = jnp.asarray(x)
        self.is_fused = not isinstance(weights, tuple | list)
        given = [weights] if self.is_fused else list(weights)
        self._weights = [jnp.asarray(w) for w in given]
        self._names = f"x={ArraySpec.of(self.x)} weights={self._written()}"
        self._check_shapes()
        self._check_dtype("weights", self._weights[0], self._names)
        self._check_dtype("weights", self._weights[-1], self._names)
        if self.x.dtype.name not in _DTYPES:
            raise _fail(
                f"dtype must be among {', '.join(_DTYPES)}",
                self._names,
                "Cast to one of them.",
            )

    def _written(self) -> str:
        specs = ", ".join(str(ArraySpec.of(w)) for w in self._weights)
        return specs if self.is_fused else f"({specs})"

    def _check_shapes(self) -> None:
        shapes = [w.shape for w in self._weights]
        if self.is_fused:
            is_right = len(shapes[0]) == 3 and shapes[0][1] == 2
        else:
            is_right = (
                len(shapes) == 2 and len(shapes[0]) == 2 and shapes[0] == shapes[1]
            )
        if not is_right:
            raise _fail(
                "weights must be [D, 2, F], or a pair of [D, F]",
                self._names,
                "Reshape a [D, 2 * F] array of gate and up to [D, 2, F].",
            )
        if self.x.ndim < 1 or self.x.shape[-1] != shapes[0][0]:
            raise _fail(
                "the last axis of x must be D, the first of the weights",
                self._names,
                "Transpose the weights if they are [F, D].",
            )

    def _check_dtype(self, name: str, array: jax.Array, got: str) -> None:
        if array.dtype != self.x.dtype:
            raise _fail(
                f"x and {name} must have one dtype",
                got,
                f"Cast them, e.g. {name}.astype(x.dtype).",
            )

    def arrays(
        self, bias: Any, down_weight: Any, down_bias: Any
    ) -> dict[str, jax.Array | None]:
        """All operands by the names of the OpSpec, absent ones None."""
        weights, down = self._weights, self._down_weight(down_weight)
        self.down_bias = self._down_bias(down_bias, down)
        gate_bias, up_bias = self._biases(bias)
        return {
            "x": self.x,
            "weights": weights[0] if self.is_fused else None,
            "gate_weight": None if self.is_fused else weights[0],
            "up_weight": None if self.is_fused else weights[1],
            "gate_bias": gate_bias,
            "up_bias": up_bias,
            "down_weight": down,
        }

    @property
    def _f(self) -> Any:
        return self._weights[0].shape[-1]

    def _biases(self, bias: Any) -> tuple[jax.Array | None, jax.Array | None]:
        if bias is None:
            return None, None
        is_pair = isinstance(bias, tuple | list)
        parts = [jnp.asarray(b) for b in (bias if is_pair else [bias])]
        expected = [(self._f,)] * 2 if is_pair else [(2, self._f)]
        got = ", ".join(str(ArraySpec.of(b)) for b in parts)
        if [b.shape for b in parts] != expected or not all(map(_is_floating, parts)):
            raise _fail(
                f"bias must be floating, [2, F] or a pair of [F], F = {self._f}",
                f"bias={f'({got})' if is_pair else got}",
                "Pass zeros for a bias that is missing.",
            )
        return (parts[0], parts[1]) if is_pair else (parts[0][0], parts[0][1])

    def _down_weight(self, down_weight: Any) -> jax.Array | None:
        if down_weight is None:
            return None
        down = jnp.asarray(down_weight)
        if down.ndim != 2 or down.shape[0] != self._f:
            raise _fail(
                f"down_weight must be [F, O], F = {self._f}",
                f"down_weight={ArraySpec.of(down)}",
                "Transpose it if it is [O, F].",
            )
        got = f"x={ArraySpec.of(self.x)} down_weight={ArraySpec.of(down)}"
        self._check_dtype("down_weight", down, got)
        return down

    def _down_bias(self, down_bias: Any, down: jax.Array | None) -> Any:
        if down_bias is None:
            return None
        down_bias = jnp.asarray(down_bias)
        got = f"down_bias={ArraySpec.of(down_bias)}"
        if down is None:
            raise _fail("down_bias needs down_weight", got, "Pass both, or neither.")
        if down_bias.shape != down.shape[1:] or not _is_floating(down_bias):
            raise _fail(
                f"down_bias must be floating, [O] = [{down.shape[1]}]",
                got,
                "Give it one entry for each column of down_weight.",
            )
        return down_bias


def _is_floating(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
