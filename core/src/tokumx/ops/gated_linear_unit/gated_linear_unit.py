"""Public API of gated linear units, and their OpSpecs.

D width, F hidden width, O width after the down projection.
"""

from typing import Any

import jax

from tokumx.contract import (
    CallSpec,
    Config,
    Configs,
    DeviceSpec,
    Implementation,
    OpSpec,
    Ranking,
)
from tokumx.dispatch import Preference, call_op
from tokumx.ops.gated_linear_unit import reference, xla_recompute
from tokumx.ops.gated_linear_unit.arguments import DOWN, GLU, Checked, glu_options
from tokumx.ops.gated_linear_unit.inputs import (
    down_examples,
    examples,
    make_arrays,
)

ArrayLike = Any


def gated_linear_unit(
    x: ArrayLike,
    weights: ArrayLike | tuple[ArrayLike, ArrayLike],
    *,
    bias: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    down_weight: ArrayLike | None = None,
    down_bias: ArrayLike | None = None,
    activation: str = "silu",
    limit: float | None = None,
    alpha: float | None = None,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array:
    """A gated linear unit, and the down projection after it if there is one.

    gate = x @ w_gate + b_gate,  up = x @ w_up + b_up
    hidden = activation(gate) * up
    out = hidden, or hidden @ down_weight + down_bias

    Args:
      x: [..., D]; f32, bf16, f16 or f64.
      weights: [D, 2, F] with the gate at index 0 and up at 1, or a pair of
        [D, F], gate and up; in x's dtype. A [D, 2 * F] array in halves
        is w.reshape(D, 2, F); gpt-oss interleaves: w.reshape(D, F, 2).mT.
      bias: [2, F] or a pair of [F], floating; added in f32.
      down_weight: [F, O], in x's dtype.
      down_bias: [O], floating; added in f32.
      activation: "silu" (SwiGLU), "gelu" (by erf), "gelu_tanh", "relu",
        "sigmoid", or "swiglu_oai", the unit of gpt-oss:
        hidden = gate * sigmoid(alpha * gate) * (up + 1).
      limit: before the activation, whichever it is, the gate is clipped from
        above to limit, and up to [-limit, limit]; at the limit itself the
        gradient passes. None means 7.0 for swiglu_oai, else no clipping.
      alpha: of swiglu_oai only; None means 1.702.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken, or Configs for forward and
        backward apart; None looks it up.

    Returns:
      [..., F], or [..., O] with down_weight, in x.dtype. Products are
      accumulated, and the activation computed, in f32 (f64 for f64). Rounded
      to x.dtype: hidden, once, and the result of the down projection, once.
      With F split over devices the down projection's partial sums are added in
      f32. Inside the caller's own shard_map the result is this device's
      partial sum: sum it, and add down_bias afterwards.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: for the backward, `xla_recompute` keeps gate and up in x.dtype,
    2 * F elements a row beside x, and computes hidden anew; `xla` keeps about
    four times that, in f32. Both are named "tokumx_gated_linear_unit" (with a
    down projection "tokumx_gated_linear_unit_down") for jax.checkpoint
    policies; under a plain jax.checkpoint nothing but x is kept.
    Gradients: x, weights, biases. `xla_recompute` first order, reverse mode
    only; `xla` whatever jax differentiates.
    Source: Shazeer 2020, arXiv:2002.05202; swiglu_oai: gpt-oss model card,
    arXiv:2508.10925.
    """
    options = glu_options(activation, limit, alpha)
    checked = Checked(x, weights)
    arrays = checked.arrays(bias, down_weight, down_bias)
    op = GATED_LINEAR_UNIT if down_weight is None else GATED_LINEAR_UNIT_DOWN
    out = call_op(op, arrays, options, implementation=implementation, config=config)[
        "out"
    ]
    if down_bias is not None:
        out = out + checked.down_bias.astype(out.dtype)
    return out.astype(checked.x.dtype)


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Measured on a CPU, see README.md; the products are the same."""
    del call, device
    return [
        ("xla_recompute", "keeps less for the backward; a single row is padded"),
        ("xla", "jax differentiates it, and keeps f32 intermediates"),
    ]


_IMPLEMENTATIONS = (
    Implementation.of_module("xla_recompute", xla_recompute),
    Implementation.of_module("xla", reference),
)
_HIDDEN = "... f"
_AXES = {
    "x": "... d",
    "weights": "d c f",
    "gate_weight": "d f",
    "up_weight": "d f",
    "gate_bias": "f",
    "up_bias": "f",
    "gate": _HIDDEN,
    "up": _HIDDEN,
}
_FLOATS = ("x", "weights", "gate_weight", "up_weight", "gate_bias", "up_bias")

GATED_LINEAR_UNIT = OpSpec(
    name=GLU,
    axes=_AXES | {"out": _HIDDEN},
    outputs=("out", "gate", "up"),
    graded_outputs=("out",),
    sharded_axes={"...": "...", "f": "f"},
    differentiable=_FLOATS,
    implementations=_IMPLEMENTATIONS,
    rank=_rank,
    make_arrays=make_arrays,
    examples=examples,
)

# Its `out` is in the accumulation dtype: where devices split F, a sum of parts.
GATED_LINEAR_UNIT_DOWN = OpSpec(
    name=DOWN,
    axes=_AXES | {"down_weight": "f o", "out": "... o"},
    outputs=("out", "gate", "up"),
    graded_outputs=("out",),
    sharded_axes={"...": "...", "f": "f"},
    differentiable=(*_FLOATS, "down_weight"),
    implementations=_IMPLEMENTATIONS,
    rank=_rank,
    make_arrays=make_arrays,
    examples=down_examples,
)
