"""Checks the arguments and brings them to one canonical form.

Canonical: every array has a leading problem axis b of size 1, which vmap makes
larger: x [1, G, T, D], labels [1, G, T] int32, weight [1, D, V] or [1, V, D],
bias [1, V]. Labels are places among the words of this device: IGNORED in tokens
that do not count, V where the label's word is on another device.
"""

import difflib
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tokumx.contract import ArraySpec
from tokumx.debug import check_values
from tokumx.ops.linear_softmax_cross_entropy.logits import IGNORED, is_removed

REDUCTIONS = ("mean", "sum", "none")
_LAYOUTS = ("dv", "vd")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


class Checked:
    """x, weight and labels, and checks of the rest.

    Attributes:
      x, weight, labels, bias: arrays as given.
      leading: x.shape without the width.
      is_counted: bool [...], False where labels are ignore_index.
      is_valid: bool [...], the label is a word, or ignored.
      is_here: bool [...], the label's word is one of this device.
    """

    def __init__(
        self,
        op: str,
        x: Any,
        weight: Any,
        labels: Any,
        bias: Any,
        *,
        ignore_index: Any,
        weight_layout: Any,
        vocab_axis_name: Any,
    ):
        self._op = op
        self.check_name("weight_layout", weight_layout, _LAYOUTS)
        self.layout = weight_layout
        self.x, self.weight = jnp.asarray(x), jnp.asarray(weight)
        self.leading = self.x.shape[:-1]
        self._check_operands()
        self.vocab = self.weight.shape[weight_layout.index("v")]
        self.bias = self._checked_bias(bias)
        self.axis_name = vocab_axis_name
        if isinstance(ignore_index, bool) or not isinstance(
            ignore_index, int | np.integer
        ):
            raise self.fail(
                "ignore_index must be an int",
                repr(ignore_index),
                "It is the label of tokens that do not count.",
            )
        self._set_labels(labels, int(ignore_index))

    def fail(self, rule: str, got: Any, advice: str) -> ValueError:
        return ValueError(f"{self._op}: {rule}; got {got}. {advice}")

    def check_name(self, argument: str, name: Any, names: Sequence[str]) -> None:
        if isinstance(name, str) and name in names:
            return
        close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
        raise self.fail(
            f"{argument} must be among {', '.join(map(repr, names))}",
            repr(name),
            f"Did you mean {close[0]!r}?"
            if close
            else "The docstring says what each is.",
        )

    def _check_operands(self) -> None:
        x, weight = self.x, self.weight
        names = f"x={ArraySpec.of(x)} weight={ArraySpec.of(weight)}"
        if any(a.dtype.name not in _DTYPES for a in (x, weight)):
            raise self.fail(
                f"x and weight must be of {', '.join(_DTYPES)}",
                names,
                "Cast them, or dequantize the weight.",
            )
        form = "[D, V]" if self.layout == "dv" else "[V, D]"
        has_ranks = x.ndim > 0 and weight.ndim == 2
        d = self.layout.index("d")
        if has_ranks and x.shape[-1] == weight.shape[d] and all(weight.shape):
            return
        other = "vd" if self.layout == "dv" else "dv"
        raise self.fail(
            f"x must be [..., D] and weight {form} with D, V > 0, for "
            f"weight_layout={self.layout!r}",
            names,
            f"A weight of the other layout needs weight_layout={other!r}, not a "
            "transposition.",
        )

    def _checked_bias(self, bias: Any) -> jax.Array | None:
        if bias is None:
            return None
        bias = jnp.asarray(bias)
        if bias.shape != (self.vocab,) or bias.dtype.name not in _DTYPES:
            raise self.fail(
                f"bias must be floating [V] = [{self.vocab}]",
                f"bias={ArraySpec.of(bias)}",
                "Pass one number for each word of weight.",
            )
        return bias

    def _set_labels(self, labels: Any, ignore_index: int) -> None:
        given = labels if hasattr(labels, "dtype") else np.asarray(labels)
        if given.shape != self.leading or not jnp.issubdtype(given.dtype, jnp.integer):
            raise self.fail(
                f"labels must be integers of x's shape without the last axis, "
                f"{list(self.leading)}",
                f"labels={ArraySpec.of(given)}",
                "Pass the index of one word for each token.",
            )
        first, total = 0, self.vocab
        if self.axis_name is not None:
            total = self.vocab * lax.axis_size(self.axis_name)
            first = lax.axis_index(self.axis_name) * self.vocab
        self._check_label_values(given, total, ignore_index)
        labels = jnp.asarray(given)
        self.is_counted = labels != ignore_index
        self.is_valid = ~self.is_counted | ((labels >= 0) & (labels < total))
        local = labels.astype(jnp.int32) - first
        self.is_here = self.is_counted & (local >= 0) & (local < self.vocab)
        elsewhere = jnp.where(self.is_here, local, self.vocab)
        self.labels = jnp.where(self.is_counted, elsewhere, IGNORED).astype(jnp.int32)

    def _check_label_values(self, labels: Any, total: int, ignore_index: int) -> None:
        def find_error(values: np.ndarray) -> ValueError | None:
            is_wrong = (values < 0) | (values >= total)
            wrong = values[is_wrong & (values != ignore_index)]
            if not wrong.size:
                return None
            return self.fail(
                f"labels must be in [0, {total}), or ignore_index = {ignore_index}",
                int(wrong[0]),
                "Give tokens without a label ignore_index.",
            )

        if isinstance(total, int):
            check_values(labels, find_error)

    def loss_weights(self, weights: Any) -> jax.Array | None:
        if weights is None:
            return None
        weights = jnp.asarray(weights)
        if weights.shape != self.leading or weights.dtype.name not in _DTYPES:
            raise self.fail(
                f"loss_weights must be floating, of labels' shape {list(self.leading)}",
                f"loss_weights={ArraySpec.of(weights)}",
                "Pass one number for each token.",
            )
        return weights

    def number(self, name: str, value: Any, rule: str, is_fine: Any) -> float:
        """A finite Python number that is_fine accepts."""
        is_number = isinstance(value, int | float | np.number)
        if is_number and math.isfinite(value) and is_fine(value):
            return float(value)
        got = repr(value) if is_number else type(value).__name__
        raise self.fail(
            f"{name} must be a Python number {rule}", got, "It is part of the program."
        )

    def options(
        self, *, temperature: Any, logits_soft_cap: Any, needs_sum: bool
    ) -> dict[str, Any]:
        """Static options of the statistics."""
        positive = lambda v: v > 0  # noqa: E731
        cap = logits_soft_cap
        if cap is not None:
            cap = self.number("logits_soft_cap", cap, "> 0, or None", positive)
        return {
            "weight_layout": self.layout,
            "logits_soft_cap": cap,
            "temperature": self.number("temperature", temperature, "> 0", positive),
            "needs_sum": needs_sum,
        }

    def arrays(self) -> dict[str, jax.Array | None]:
        """The canonical operands."""
        return {
            "x": self._as_groups(self.x, 1),
            "weight": self.weight[None],
            "labels": self._as_groups(self.labels, 0),
            "bias": None if self.bias is None else self.bias[None],
        }

    def _as_groups(self, x: jax.Array, trailing: int) -> jax.Array:
        """[..., *] -> [1, G, T, *]; axes before the last two become one."""
        leading = x.ndim - trailing
        if leading < 2:
            return jnp.expand_dims(x, tuple(range(3 - leading)))
        if leading > 2:
            x = jax.lax.collapse(x, 0, leading - 1)
        return x[None]

    def kept_words(self) -> jax.Array | int:
        """Words that are not removed, of this device."""
        if self.bias is None:
            return self.vocab
        return (~is_removed(self.bias)).sum(dtype=jnp.int32)
