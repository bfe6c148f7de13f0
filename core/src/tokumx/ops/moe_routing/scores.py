"""From logits to weights, for any way to pick the experts.

E experts, K chosen by each token, M groups of experts.

A score is the softmax of the logits or their sigmoid. Renormalised scores are
the softmax of the log-scores of the chosen experts alone: the same numbers,
and no division of one underflow by another.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import Arrays, CallSpec, Outputs

# (values [..., n], how many) -> indices [..., how many], largest first, the
# lower index of equal values first. Values are those of `_ranked`.
Pick = Callable[[jax.Array, int], jax.Array]


def route(arrays: Arrays, call: CallSpec, pick: Pick) -> Outputs:
    """The op's outputs; jax can differentiate it."""
    logits = wide(arrays["logits"])
    scores = _all_scores(logits, call)
    experts = _choose(logits, scores, arrays, call, pick)
    chosen = jnp.take_along_axis(logits, experts, -1)  # [..., K]
    return {
        "weights": _weights(chosen, scores, experts, call) * call.option("scale"),
        "experts": experts,
        "probs": _probabilities(logits, scores, call),
    }


def wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _is_softmax(call: CallSpec) -> bool:
    return call.option("score") == "softmax"


def _is_over_chosen(call: CallSpec) -> bool:
    """The weights are a softmax over the chosen experts alone."""
    return call.option("normalize") == "after" or call.option("renormalize")


def _all_scores(logits: jax.Array, call: CallSpec) -> jax.Array:
    return _softmax(logits) if _is_softmax(call) else jax.nn.sigmoid(logits)


def _log_scores(logits: jax.Array, call: CallSpec) -> jax.Array:
    """Up to a constant of the row."""
    return logits if _is_softmax(call) else jax.nn.log_sigmoid(logits)


def _softmax(x: jax.Array) -> jax.Array:
    """Over the last axis; zeros, with zero gradients, where all of it is -inf."""
    top = lax.stop_gradient(x.max(-1, keepdims=True))
    weights = jnp.exp(x - jnp.where(top == -jnp.inf, 0, top))
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)


def _weights(
    chosen: jax.Array, scores: jax.Array, experts: jax.Array, call: CallSpec
) -> jax.Array:
    if _is_over_chosen(call):
        return _softmax(_log_scores(chosen, call))
    if _is_softmax(call):
        return jnp.take_along_axis(scores, experts, -1)
    return jax.nn.sigmoid(chosen)


def _probabilities(logits: jax.Array, scores: jax.Array, call: CallSpec) -> jax.Array:
    return scores if _is_softmax(call) else _softmax(_log_scores(logits, call))


def _choose(
    logits: jax.Array, scores: jax.Array, arrays: Arrays, call: CallSpec, pick: Pick
) -> jax.Array:
    """[..., K] int32."""
    groups = call.option("num_groups")
    if groups is None and "correction_bias" not in arrays:
        values = logits  # in the order of the scores, and without their rounding
    else:
        values = scores
        if "correction_bias" in arrays:
            values = values + wide(arrays["correction_bias"])
    values = _ranked(lax.stop_gradient(values))
    if groups is not None:
        values = _in_best_groups(values, groups, call.option("top_groups"), pick)
    return pick(values, call.option("k"))


def _ranked(x: jax.Array) -> jax.Array:
    """A total order whatever x holds: NaN first, -inf last, zeros equal.

    -inf itself is left to mark what must not be picked.
    """
    x = jnp.where(jnp.isnan(x), jnp.inf, jnp.where(x == 0, 0, x))
    return jnp.maximum(x, jnp.finfo(x.dtype).min)


def _in_best_groups(
    values: jax.Array, groups: int, top_groups: int, pick: Pick
) -> jax.Array:
    """-inf outside of the groups whose two best values have the largest sum."""
    by_group = values.reshape(*values.shape[:-1], groups, -1)  # [..., M, E / M]
    best = pick(by_group, min(2, by_group.shape[-1]))
    group_values = jnp.take_along_axis(by_group, best, -1).sum(-1)  # [..., M]
    kept = pick(_ranked(group_values), top_groups)
    is_kept = _is_among(kept, groups)
    return jnp.where(is_kept[..., None], by_group, -jnp.inf).reshape(values.shape)


def _is_among(indices: jax.Array, size: int) -> jax.Array:
    """[..., n] -> [..., size] bool: which indices occur."""
    shape = (*indices.shape[:-1], size)
    lanes = lax.broadcasted_iota(jnp.int32, shape, indices.ndim - 1)
    found = jnp.zeros(shape, jnp.bool_)
    for j in range(indices.shape[-1]):
        found |= lanes == indices[..., j : j + 1]
    return found
