"""`cpu_native`: products with quantized weights in C++, quantized_dot.cc.

Four rows or fewer read the weights once, in their bits; more rows bring a block of
them back to f32 in the L2 cache and multiply all rows with it:

  few   for each segment of K:  part = x[:, segment] @ (values - zero_points)[segment]
                                out += part * scales
  many  for each block of w:    out[:, block] += x[:, block] @ w[block]

Backward, with the cotangent ct: the same with w^T.

Memory: a block of the weights and of x, or four rows of x, for each thread.
"""

from collections.abc import Sequence

import jax
from jax import lax

from tokumx import native
from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.native import quantized_dot as kernel
from tokumx.ops.quantized_matmul import xla_blocked
from tokumx.ops.quantized_matmul.reference import rounded, weights_of
from tokumx.quant import QArray

Config = NoConfig
LOCAL = True
STAND_IN = xla_blocked


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    if device.platform != "cpu":
        return "runs on a CPU only"
    missing = native.why_unavailable()
    if missing is not None:
        return missing
    dtype = call["x"].dtype
    if dtype not in kernel.DTYPES:
        return f"dtype must be f32, bf16 or f16, got {dtype}"
    if "zero_points" in call and call["zero_points"].dtype != "int8":
        return f"zero points must be int8, got {call['zero_points'].dtype}"
    return xla_blocked.unsupported(call, device)


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    del call, device, direction
    return Config()


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del call, device, direction
    return [Config()]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    return {"out": _product(rounded(arrays["x"], call), arrays, call, False)}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del outputs, config
    dx = _product(cotangents["out"], arrays, call, True)
    if arrays["x"].shape[0] < dx.shape[0]:
        dx = dx.sum(0, keepdims=True)
    return {"x": dx}


def _product(
    x: jax.Array, arrays: Arrays, call: CallSpec, is_transposed: bool
) -> jax.Array:
    weights = _with_even_groups(weights_of(arrays, call))
    problems = max(x.shape[0], weights.shape[0])
    leading = (problems, *x.shape[1:3])
    if weights.shape[0] == 1:  # problems are rows
        x, problems = lax.collapse(x, 0, 2)[None], 1
    out = kernel.quantized_dot(
        lax.collapse(x, 1, 3),
        weights.values,
        weights.scales,
        weights.zero_points,
        problems=problems,
        is_transposed=is_transposed,
    )
    return out.reshape(*leading, out.shape[-1])


def _with_even_groups(weights: QArray) -> QArray:
    """Two numbers of a byte share their scale, or have a byte each."""
    groups = weights.scales.shape[1]
    return weights.unpacked() if weights.shape[1] // groups % 2 else weights
