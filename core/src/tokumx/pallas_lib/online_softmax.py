"""Softmax over key blocks that are seen one after the other.

State of a row after some blocks (Milakov & Gimelshein 2018,
arXiv:1805.02867; the names follow FlashAttention-2, arXiv:2307.08691):

  m  running maximum of the logits, -inf before the first visible key
  l  sum of exp(logit - m)
  o  sum of exp(logit - m) * value

A kernel may keep logits and m in units of 1 / unit; sinks and results are not.

A masked logit is -inf, never a large negative number, so that a row with no
visible key keeps m = -inf, l = 0, o = 0 and ends as zeros.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tokumx.pallas_lib.varying import filled


class SoftmaxState(NamedTuple):
    m: jax.Array  # [*rows]
    l: jax.Array  # [*rows]  # noqa: E741  (the name in the papers)
    o: jax.Array  # [*rows, value_dim]


def initial_state(
    rows: tuple[int, ...], value_dim: int, dtype: Any, like: jax.Array
) -> SoftmaxState:
    return SoftmaxState(
        filled(rows, -jnp.inf, dtype, like),
        filled(rows, 0, dtype, like),
        filled((*rows, value_dim), 0, dtype, like),
    )


def finite_or_zero(m: jax.Array) -> jax.Array:
    """The maximum to subtract: 0 in a row that saw no key, to avoid inf - inf."""
    return jnp.where(m == -jnp.inf, 0, m)


def row_outputs(
    state: SoftmaxState, unit: float = 1.0
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What a backward pass and the caller need of a row besides o.

    The log-sum-exp, the maximum (0 in a row that saw no key) and the sum. The
    backward recomputes weights as exp(logit - m) / l: with logits in the
    thousands exp(logit - lse) would carry the rounding of lse.
    """
    return log_sum_exp(state, unit), finite_or_zero(state.m), state.l


def log_sum_exp(state: SoftmaxState, unit: float = 1.0) -> jax.Array:
    """-inf in a row that saw no key."""
    return jnp.log(state.l) + finite_or_zero(state.m) * unit


def normalised(state: SoftmaxState) -> jax.Array:
    """The weighted mean of the values; zeros in a row that saw no key."""
    return state.o / jnp.where(state.l == 0, 1, state.l)[..., None]


def add_sink(state: SoftmaxState, sink: jax.Array, unit: float = 1.0) -> SoftmaxState:
    """Adds a logit without a value, which takes part in the sum only."""
    sink = sink / unit
    m = jnp.maximum(state.m, sink)
    shift = finite_or_zero(m)
    alpha = jnp.exp((state.m - shift) * unit)
    total = state.l * alpha + jnp.exp((sink - shift) * unit)
    return SoftmaxState(m, total, state.o * alpha[..., None])
