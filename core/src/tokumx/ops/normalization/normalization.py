"""Public API of normalization: two functions, and their OpSpecs.

D width of the normalized axes together.
"""

from collections.abc import Sequence
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
from tokumx.ops.normalization import cpu_native, reference, xla_fused
from tokumx.ops.normalization.arguments import Checked
from tokumx.ops.normalization.inputs import examples_of, make_arrays

ArrayLike = Any
Normalized = jax.Array | tuple[jax.Array, jax.Array]


def rms_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    *,
    residual: ArrayLike | None = None,
    eps: float = 1e-6,
    axis: int | Sequence[int] = -1,
    zero_centered_scale: bool = False,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> Normalized:
    """Divides each row by its root mean square, then scales it.

    s = x + residual, or x,  r = rsqrt(mean_d(s**2) + eps)
    out[..., d] = s[..., d] * r * scale[d]

    Args:
      x: [..., D]; f32, bf16, f16 or f64.
      scale: [D] floating, used in f32 (f64 for f64); None means ones.
      residual: as x; then the sum s is returned too, rounded once to x.dtype,
        and what is normalized is that rounded sum.
      eps: added inside the root, in units of x**2.
      axis: the normalized axis, or several: scale then has their sizes, in
        the order given.
      zero_centered_scale: scales by 1 + scale, as Gemma stores it.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken, or Configs for forward and
        backward apart; None looks it up.

    Returns:
      out, of x's shape and dtype, rounded once from f32 (f64 for f64); with
      residual (out, s).

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: for the backward s is kept, and r, one f32 a row; both named
    "tokumx_rms_norm" ("tokumx_rms_norm_residual") for jax.checkpoint policies.
    Gradients: x, scale, residual; scale's is summed in f32 and rounded once.
    First order, reverse mode; `xla` whatever jax differentiates. Rows may be split
    over devices.
    Squares must not overflow in f32: |s| < 1e19.
    Source: Zhang & Sennrich 2019, eq. 4, arXiv:1910.07467.
    """
    return _normalized(
        "rms_norm",
        Checked("rms_norm", x, residual, axis),
        scale,
        None,
        eps=eps,
        zero_centered_scale=zero_centered_scale,
        implementation=implementation,
        config=config,
    )


def layer_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    residual: ArrayLike | None = None,
    eps: float = 1e-5,
    axis: int | Sequence[int] = -1,
    zero_centered_scale: bool = False,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> Normalized:
    """Brings each row to mean 0 and variance 1, then scales and shifts it.

    s = x + residual, or x,  m = mean_d(s),  r = rsqrt(mean_d((s - m)**2) + eps)
    out[..., d] = (s[..., d] - m) * r * scale[d] + bias[d]

    Args:
      x: [..., D]; f32, bf16, f16 or f64.
      scale, bias: [D] floating, used in f32 (f64 for f64); None means ones and
        zeros.
      residual, eps, axis, zero_centered_scale: see rms_norm.
      implementation, config: see rms_norm.

    Returns:
      out, of x's shape and dtype, rounded once from f32 (f64 for f64); with
      residual (out, s).

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: for the backward s, m and r are kept, named "tokumx_layer_norm"
    ("tokumx_layer_norm_residual") for jax.checkpoint policies.
    Gradients: x, scale, bias, residual; else as rms_norm. The variance is computed
    from s - m, not as a difference of large squares.
    Source: Ba et al. 2016, eq. 4, arXiv:1607.06450.
    """
    return _normalized(
        "layer_norm",
        Checked("layer_norm", x, residual, axis),
        scale,
        bias,
        eps=eps,
        zero_centered_scale=zero_centered_scale,
        implementation=implementation,
        config=config,
    )


def _normalized(
    name: str,
    checked: Checked,
    scale: ArrayLike | None,
    bias: ArrayLike | None,
    *,
    eps: float,
    zero_centered_scale: bool,
    implementation: Preference,
    config: Config | Configs | None,
) -> Normalized:
    arrays = checked.arrays()
    arrays["scale"] = checked.parameter("scale", scale, int(zero_centered_scale))
    arrays["bias"] = checked.parameter("bias", bias, 0)
    op = _OPS[name if arrays["residual"] is None else f"{name}_residual"]
    options = {
        "eps": checked.number("eps", eps),
        "is_centered": name == "layer_norm",
    }
    outputs = call_op(op, arrays, options, implementation=implementation, config=config)
    out = checked.restored(outputs["out"])
    if "total" not in op.outputs:
        return out
    return out, checked.restored(outputs["total"])


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Measured on a CPU, see README.md."""
    del call, device
    return [
        ("cpu_native", "each row is read from memory once"),
        ("xla_fused", "sums are products, and fewer passes in the backward"),
        ("xla", "jax differentiates it, and sums one number at a time"),
    ]


_IMPLEMENTATIONS = (
    Implementation.of_module("cpu_native", cpu_native),
    Implementation.of_module("xla_fused", xla_fused),
    Implementation.of_module("xla", reference),
)
_ROWS, _ROW_STATISTIC = "b g t d", "b g t"
_FLOATS = ("x", "residual", "scale", "bias")


def _op_of(name: str, has_residual: bool) -> OpSpec:
    graded = ("out", "total") if has_residual else ("out",)
    statistics = ("rstd", "mean") if name == "layer_norm" else ("rstd",)
    full_name = f"{name}_residual" if has_residual else name
    return OpSpec(
        name=full_name,
        axes={
            "x": _ROWS,
            "residual": _ROWS,
            "scale": "b d",
            "bias": "b d",
            **dict.fromkeys(graded, _ROWS),
            **dict.fromkeys(statistics, _ROW_STATISTIC),
        },
        outputs=(*graded, *statistics),
        graded_outputs=graded,
        sharded_axes={"b": "b", "g": "g", "t": "t"},
        differentiable=_FLOATS,
        implementations=_IMPLEMENTATIONS,
        rank=_rank,
        make_arrays=make_arrays,
        examples=examples_of(full_name),
    )


RMS_NORM = _op_of("rms_norm", has_residual=False)
RMS_NORM_RESIDUAL = _op_of("rms_norm", has_residual=True)
LAYER_NORM = _op_of("layer_norm", has_residual=False)
LAYER_NORM_RESIDUAL = _op_of("layer_norm", has_residual=True)
_OPS = {
    op.name: op for op in (RMS_NORM, RMS_NORM_RESIDUAL, LAYER_NORM, LAYER_NORM_RESIDUAL)
}
