"""Public API of the linear cross-entropy: two functions, and their OpSpec.

D width, V words (of one device).
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
from tokumx.ops.linear_softmax_cross_entropy import reference, xla_blocked
from tokumx.ops.linear_softmax_cross_entropy.arguments import REDUCTIONS, Checked
from tokumx.ops.linear_softmax_cross_entropy.inputs import examples, make_arrays
from tokumx.ops.linear_softmax_cross_entropy.losses import (
    Rows,
    checked_or_nan,
    reduced,
    token_losses,
)

ArrayLike = Any


def linear_softmax_cross_entropy(
    x: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    loss_weights: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logits_soft_cap: float | None = None,
    temperature: float = 1.0,
    reduction: str = "mean",
    vocab_axis_name: str | tuple[str, ...] | None = None,
    weight_layout: str = "dv",
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array:
    """Cross-entropy of x @ weight, without ever holding the logits.

    z[v] = cap(x . weight[:, v] + bias[v]) / temperature,  lse = log(sum_v exp(z[v]))
    loss = (1 - s) * (lse - z[label]) + s * (lse - mean_v z[v]) + z_loss * lse**2

    with s = label_smoothing. A word whose bias is -inf is removed: z[v] = -inf with
    a cap too, it has no gradient, and the mean of the smoothing is over the words
    that are left. A token whose own label is removed has the loss inf.

    Args:
      x: [..., D]; f32, bf16, f16 or f64.
      weight: [D, V], or an embedding [V, D] with weight_layout="vd"; f32, bf16,
        f16 or f64.
      labels: [...] integer, in [0, V) or ignore_index; another value makes the
        token's loss NaN. Values are checked where they are numpy arrays, and
        everywhere under tokumx.debug_checks().
      bias: [V] floating, used in f32 (f64 for f64).
      loss_weights: [...] floating; each multiplies its token's loss.
      ignore_index: label of tokens that do not count: their loss and gradients
        are 0, whatever they hold.
      label_smoothing: in [0, 1); the share of the target spread over all words.
      z_loss: >= 0; weight of lse**2.
      logits_soft_cap: c > 0; the logits become c * tanh(logits / c).
      temperature: > 0; divides the logits after the cap.
      reduction: "mean" divides the sum by the sum of loss_weights, or the number,
        of tokens that count, and is 0 if that is 0; "sum"; "none".
      vocab_axis_name: inside jax.shard_map, the mesh axis that V is split over:
        weight and bias are this device's words, labels count all devices' words,
        and x is the same on all devices. Gradients of x are summed once.
      weight_layout: "dv" or "vd"; says how weight lies, nothing is transposed.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken, or Configs for forward and backward
        apart; None looks it up.

    Returns:
      [] or, with reduction="none", [...]; f32 (f64 for f64).

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: `xla_blocked` holds nothing of size [..., V]. `xla` does, in f32; None
    takes it up to 256 MB of logits, where it is faster. For the backward, the
    operands and four f32 a token are kept, named
    "tokumx_linear_softmax_cross_entropy" for jax.checkpoint policies.
    Gradients: x, weight, bias, loss_weights, under any cotangent; weight's is
    summed in f32 and rounded once; first order. Tokens may be split over devices;
    inside shard_map "mean" is then each device's own.
    Source: Wijmans et al. 2024, arXiv:2411.09009; z-loss: Chowdhery et al. 2022,
    arXiv:2204.02311, section 5.
    """
    checked = Checked(
        LINEAR_SOFTMAX_CROSS_ENTROPY.name,
        x,
        weight,
        labels,
        bias,
        ignore_index=ignore_index,
        weight_layout=weight_layout,
        vocab_axis_name=vocab_axis_name,
    )
    checked.check_name("reduction", reduction, REDUCTIONS)
    weights = checked.loss_weights(loss_weights)
    smoothing = checked.number(
        "label_smoothing", label_smoothing, "in [0, 1)", lambda s: 0 <= s < 1
    )
    z_loss = checked.number("z_loss", z_loss, ">= 0", lambda z: z >= 0)
    options = checked.options(
        temperature=temperature,
        logits_soft_cap=logits_soft_cap,
        needs_sum=smoothing > 0,
    )
    rows = _rows(checked, options, implementation, config)
    losses = token_losses(rows, checked, smoothing, z_loss)
    return reduced(losses, weights, checked, reduction)


def linear_token_log_probs(
    x: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    temperature: float = 1.0,
    bias: ArrayLike | None = None,
    ignore_index: int = -100,
    logits_soft_cap: float | None = None,
    vocab_axis_name: str | tuple[str, ...] | None = None,
    weight_layout: str = "dv",
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array:
    """Log-probability of each token's label, as policy gradients need it.

    out = z[label] - lse, with z and lse as in linear_softmax_cross_entropy.

    Args:
      x, weight, labels: as there.
      temperature: > 0; the one that the tokens were sampled with.
      bias, logits_soft_cap, vocab_axis_name, weight_layout: as there.
      ignore_index: label of tokens that give 0.
      implementation, config: as there.

    Returns:
      [...] f32 (f64 for f64).

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory, gradients (x, weight, bias) and source: as there.
    """
    checked = Checked(
        "linear_token_log_probs",
        x,
        weight,
        labels,
        bias,
        ignore_index=ignore_index,
        weight_layout=weight_layout,
        vocab_axis_name=vocab_axis_name,
    )
    options = checked.options(
        temperature=temperature, logits_soft_cap=logits_soft_cap, needs_sum=False
    )
    rows = _rows(checked, options, implementation, config)
    return checked_or_nan(rows.log_probs, checked)


def _rows(
    checked: Checked,
    options: dict[str, Any],
    implementation: Preference,
    config: Config | Configs | None,
) -> Rows:
    outputs = call_op(
        LINEAR_SOFTMAX_CROSS_ENTROPY,
        checked.arrays(),
        options,
        implementation=implementation,
        config=config,
    )
    return Rows.of(outputs, checked)


_FEW, _MANY = 1 << 24, 1 << 26  # logits: 64 MB and 256 MB in f32
_NARROW = 512


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Expected order of speed; measured on a CPU, see README.md.

    xla_blocked computes four products instead of three, and saves passes over
    the logits: worth it where those leave the caches and rows are narrow.
    """
    del device
    blocked = ("xla_blocked", "logits exist one tile at a time")
    plain = ("xla", "few logits: one product less in the backward")
    if not call.is_static:
        return [plain, blocked]
    x, weight = call["x"], call["weight"]
    tokens = x.size(0) * x.size(1) * x.size(2)
    words = weight.size(1 if call.option("weight_layout") == "vd" else 2)
    limit = _FEW if x.size(3) <= _NARROW else _MANY
    return [plain, blocked] if tokens * words <= limit else [blocked, plain]


_TOKENS = "b g t"

LINEAR_SOFTMAX_CROSS_ENTROPY = OpSpec(
    name="linear_softmax_cross_entropy",
    axes={
        "x": "b g t d",
        "weight": "b i j",
        "labels": _TOKENS,
        "bias": "b v",
        "row_max": _TOKENS,
        "log_sum": _TOKENS,
        "label": _TOKENS,
        "logit_sum": _TOKENS,
    },
    outputs=("row_max", "log_sum", "label", "logit_sum"),
    graded_outputs=("log_sum", "label", "logit_sum"),
    sharded_axes={"b": "b", "g": "g", "t": "t"},
    differentiable=("x", "weight", "bias"),
    implementations=(
        Implementation.of_module("xla_blocked", xla_blocked),
        Implementation.of_module("xla", reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=examples,
)
