"""From statistics of logits to losses, in plain jax that XLA differentiates.

Statistics are [...] f32, one number a token; see reference.py. With a vocabulary
split over devices, each has those of its own words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.ops.linear_softmax_cross_entropy.arguments import Checked
from tokumx.ops.linear_softmax_cross_entropy.logits import finite_max


@dataclass(frozen=True)
class Rows:
    """Of each token: maximum m, and log-sum-exp, label's logit and sum of logits,
    all three less m. Zeros in tokens that do not count."""

    row_max: jax.Array
    log_sum: jax.Array
    label: jax.Array
    logit_sum: jax.Array

    @classmethod
    def of(cls, outputs: Mapping[str, jax.Array], checked: Checked) -> "Rows":
        """The statistics of all devices' words, as [...]."""
        found = {n: y.reshape(checked.leading) for n, y in outputs.items()}
        rows = cls(**found)
        if checked.axis_name is not None:
            rows = rows._joined(checked)
        # Selected before anything is computed of them: 0 times the slope of an
        # infinite loss would be NaN.
        select = lambda x: jnp.where(checked.is_counted, x, 0)  # noqa: E731
        return cls(
            select(finite_max(rows.row_max)),
            # -inf if all words are removed; then the label's logit is -inf too,
            # and -inf - -inf would be NaN where the loss is inf.
            select(finite_max(rows.log_sum)),
            select(rows.label),
            select(rows.logit_sum),
        )

    def _joined(self, checked: Checked) -> "Rows":
        axis = checked.axis_name
        row_max = lax.pmax(lax.stop_gradient(self.row_max), axis)
        own, all_devices = finite_max(self.row_max), finite_max(row_max)
        shift = lax.stop_gradient(own - all_devices)
        # exp(-inf) where this device has nothing but removed words.
        share = jnp.exp(self.log_sum + shift)
        label = jnp.where(checked.is_here, self.label + shift, 0)
        logit_sum = self.logit_sum + checked.kept_words() * shift
        return Rows(
            row_max,
            jnp.log(lax.psum(share, axis)),
            lax.psum(label, axis),
            lax.psum(logit_sum, axis),
        )

    @property
    def log_probs(self) -> jax.Array:
        return self.label - self.log_sum


def total_kept_words(checked: Checked) -> Any:
    words = checked.kept_words()
    return words if checked.axis_name is None else lax.psum(words, checked.axis_name)


def token_losses(
    rows: Rows, checked: Checked, label_smoothing: float, z_loss: float
) -> jax.Array:
    """[...]; 0 in tokens that do not count, NaN where the label is no word."""
    losses = -rows.log_probs
    if label_smoothing:
        words = jnp.maximum(jnp.asarray(total_kept_words(checked), losses.dtype), 1)
        uniform = rows.log_sum - rows.logit_sum / words
        losses = (1 - label_smoothing) * losses + label_smoothing * uniform
    if z_loss:
        losses = losses + z_loss * (rows.row_max + rows.log_sum) ** 2
    return checked_or_nan(losses, checked)


def checked_or_nan(values: jax.Array, checked: Checked) -> jax.Array:
    return jnp.where(checked.is_valid, values, jnp.nan)


def reduced(
    losses: jax.Array, weights: jax.Array | None, checked: Checked, reduction: str
) -> jax.Array:
    """[...] for "none", else a scalar."""
    counted = checked.is_counted.astype(losses.dtype)
    if weights is not None:
        counted = jnp.where(checked.is_counted, weights.astype(losses.dtype), 0)
        losses = losses * counted
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    total = counted.sum()
    is_empty = total == 0
    return jnp.where(is_empty, 0, losses.sum() / jnp.where(is_empty, 1, total))
