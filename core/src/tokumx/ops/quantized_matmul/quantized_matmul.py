"""Public API of products with quantized weights, and its OpSpec."""

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
from tokumx.ops.quantized_matmul import cpu_native, reference, xla_blocked
from tokumx.ops.quantized_matmul.arguments import OP, Checked
from tokumx.ops.quantized_matmul.inputs import examples, make_arrays, options_of

ArrayLike = Any
_MANY_ROWS = 128
_SMALL_WEIGHTS = 2**24  # 64 MB in f32


def quantized_matmul(
    x: ArrayLike,
    weights: Any,
    *,
    bias: ArrayLike | None = None,
    activation_qtype: str | None = None,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array:
    """Multiplies rows with weights that are stored in 8 or 4 bits.

    w[k, n] = (values[k, n] - zero_points[tile]) * scales[tile]
    out[..., n] = sum_k x[..., k] * w[k, n] + bias[n]

    Args:
      x: [..., K]; f32, bf16, f16 or f64.
      weights: a QArray [K, N], from tokumx.quantize or QArray.of, or one of Qwix's:
        int8, int4 (packed or not) or fp8; scales for the whole, for each column, or
        for groups of rows.
      bias: [N] floating; added in f32.
      activation_qtype: x is rounded first, each row with a scale of its own; one of
        the kinds of tokumx.quantize, or None for x as it is.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken, or Configs for forward and
        backward apart; None looks it up.

    Returns:
      [..., N] in x.dtype: accumulated in f32 (f64 for f64) and rounded once. With K
      split over devices partial sums are added in f32, and each device rounds its
      own part of a row for activation_qtype.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: `xla` makes w in f32, the others a part of it at a time; None takes it for
    128 rows and more of up to 64 MB of w.
    Gradients: x and bias, for activation_qtype as if x were not rounded; weights are
    constants. First order, reverse mode; `xla` whatever jax differentiates.
    """
    checked = Checked(x, weights)
    bias = checked.bias(bias)
    out = call_op(
        QUANTIZED_MATMUL,
        checked.arrays(),
        options_of(checked.weights, checked.activation(activation_qtype)),
        implementation=implementation,
        config=config,
    )["out"]
    if bias is not None:
        out = out + bias.astype(out.dtype)
    return out.astype(checked.x.dtype).reshape(*checked.x.shape[:-1], out.shape[-1])


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Measured on a CPU, see README.md."""
    native = ("cpu_native", "weights are read in few bits, with no loop of XLA's")
    blocked = ("xla_blocked", "weights are read in few bits, some rows at a time")
    whole = ("xla", "makes the weights in f32")
    if device.platform == "cpu" and _is_worth_whole_weights(call):
        return [("xla", "many rows pay for small weights in f32"), native, blocked]
    return [native, blocked, whole]


def _is_worth_whole_weights(call: CallSpec) -> bool:
    """So many rows that XLA's product of whole matrices is the faster one."""
    if not call.is_static:
        return False
    x, values = call["x"], call["values"]
    rows = x.size(1) * x.size(2)
    numbers = values.size(0) * x.size(3) * values.size(2)
    return rows >= _MANY_ROWS and numbers <= _SMALL_WEIGHTS


QUANTIZED_MATMUL = OpSpec(
    name=OP,
    axes={
        "x": "b g t k",
        "values": "b p n",
        "scales": "b s m",
        "zero_points": "b s m",
        "out": "b g t n",
    },
    outputs=("out",),
    graded_outputs=("out",),
    sharded_axes={"b": "b", "g": "g", "t": "t", "n": "nm", "k": "kps"},
    differentiable=("x",),
    implementations=(
        Implementation.of_module("cpu_native", cpu_native),
        Implementation.of_module("xla_blocked", xla_blocked),
        Implementation.of_module("xla", reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=examples,
)
