"""Checks the arguments and brings them to one canonical form.

Canonical: x [1, G, T, K], values [1, K or K / 2, N], scales and zero points
[1, S, M] with S a divisor of K, M 1 or N. The leading axis is the problem axis, which
vmap makes larger.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tokumx.contract import ArraySpec
from tokumx.quant import QTYPES, QArray

OP = "quantized_matmul"
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_PACKED_AXIS = -2


def _fail(rule: str, got: str, advice: str) -> ValueError:
    return ValueError(f"{OP}: {rule}; got {got}. {advice}")


class Checked:
    """x and the weights, checked.

    Attributes:
      x: [..., K], as given.
      weights: a QArray [K, N]; int4 packed along K, or not at all.
    """

    def __init__(self, x: Any, weights: Any):
        self.x = jnp.asarray(x)
        if self.x.ndim < 1 or self.x.dtype.name not in _DTYPES:
            raise _fail(
                f"x must be [..., K] of {', '.join(_DTYPES)}",
                f"x={ArraySpec.of(self.x)}",
                "Cast it to one of them.",
            )
        try:
            weights = QArray.of(weights)
        except ValueError as error:
            raise ValueError(f"{OP}: weights: {error}") from error
        problem = weights.problem()
        if problem is not None:
            raise ValueError(
                f"{OP}: weights: {problem}. Make one with tokumx.quantize."
            )
        self._check_shape(weights)
        if weights.packed_axis not in (None, _PACKED_AXIS):
            weights = weights.unpacked()
        self.weights = weights

    def _check_shape(self, weights: QArray) -> None:
        shape = list(weights.shape)
        got = f"x={ArraySpec.of(self.x)} weights={shape} ({weights.qtype})"
        if len(shape) != 2 or self.x.shape[-1] != shape[0]:
            raise _fail(
                "weights must be [K, N], K the last axis of x",
                got,
                "Transpose before quantizing if they are [N, K].",
            )
        if weights.scales.shape[1] not in (1, shape[1]):
            raise _fail(
                "columns must share one scale, or each have their own",
                f"{got} scales={ArraySpec.of(weights.scales)}",
                "Groups are along K: tokumx.quantize(w, axis=0, group_size=...).",
            )

    def activation(self, qtype: Any) -> str | None:
        """The kind to round x to, or None."""
        if qtype is None or qtype in QTYPES:
            return qtype
        raise _fail(
            f"activation_qtype must be None or among {', '.join(QTYPES)}",
            repr(qtype),
            "None leaves x as it is.",
        )

    def bias(self, bias: Any) -> jax.Array | None:
        if bias is None:
            return None
        bias = jnp.asarray(bias)
        if bias.shape != self.weights.shape[1:] or bias.dtype.name not in _DTYPES:
            raise _fail(
                f"bias must be floating, [N] = [{self.weights.shape[1]}]",
                f"bias={ArraySpec.of(bias)}",
                "Give it one entry for each column of weights.",
            )
        return bias

    def arrays(self) -> dict[str, jax.Array | None]:
        weights = self.weights
        zero = weights.zero_points
        wide = jnp.promote_types(self.x.dtype, jnp.float32)
        if zero is not None:
            zero = weights.zero_points_as_scales()[None]
        return {
            "x": self._as_rows(),
            "values": weights.values[None],
            "scales": weights.scales.astype(wide)[None],
            "zero_points": zero,
        }

    def _as_rows(self) -> jax.Array:
        """[1, G, T, K]; axes before the last two become one."""
        x = self.x
        if x.ndim < 3:
            return jnp.expand_dims(x, tuple(range(4 - x.ndim)))
        return jax.lax.collapse(x, 0, x.ndim - 2)[None]
