"""`cpu_native`: norms of rows in C++, core/native/src/normalization.cc.

A task is some rows; each is read from memory once, and again from the cache for its
statistics and its result. Backward: two passes over a row, four rows to a pass over
the sums of scale's and bias's gradients, which are of 64 rows, then of a share of
the rows, then of the shares in order.

Memory: of the backward, two rows of sums for each of at most 64 shares.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tokumx import native
from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)
from tokumx.native import normalization as kernel
from tokumx.ops.normalization import xla_fused

Config = NoConfig
LOCAL = True
STAND_IN = xla_fused


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    if device.platform != "cpu":
        return "runs on a CPU only"
    missing = native.why_unavailable()
    if missing is not None:
        return missing
    dtype = call["x"].dtype
    if dtype not in kernel.DTYPES:
        return f"dtype must be f32, bf16 or f16, got {dtype}"
    if not call.is_static:
        return "sizes must be known"
    return None


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
    rows = _Rows(arrays)
    out, total, rstd, mean = kernel.row_norm(
        rows.of(arrays["x"]),
        rows.of(arrays["residual"]) if "residual" in arrays else None,
        arrays.get("scale"),
        arrays.get("bias"),
        eps=call.option("eps"),
        is_centered=call.option("is_centered"),
    )
    found = {"out": out, "total": total, "rstd": rstd, "mean": mean}
    return {n: rows.back(y) for n, y in found.items() if y is not None}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del call, config
    rows = _Rows(arrays)
    has_residual = "residual" in arrays
    dx, d_scale, d_bias = kernel.row_norm_backward(
        rows.of(outputs["total"] if has_residual else arrays["x"]),
        rows.of(cotangents["out"]),
        rows.of(cotangents["total"]) if has_residual else None,
        arrays.get("scale"),
        rows.of(outputs["rstd"]),
        rows.of(outputs["mean"]) if "mean" in outputs else None,
        has_bias="bias" in arrays,
    )
    d_rows = rows.back(dx)
    gradients = {"x": d_rows, "residual": d_rows, "scale": d_scale, "bias": d_bias}
    return {n: gradients[n] for n in arrays}


class _Rows:
    """[B, G, T, ...] <-> [P, N, ...]: P is 1 where all problems share parameters."""

    def __init__(self, arrays: Arrays):
        self._leading = arrays["x"].shape[:3]
        own = [arrays[n].shape[0] for n in ("scale", "bias") if n in arrays]
        self._problems = max([1, *own])

    def of(self, x: jax.Array) -> jax.Array:
        b, g, t = self._leading
        if self._problems > b:
            x = jnp.broadcast_to(x, (self._problems, *x.shape[1:]))
            b = self._problems
        rows = b * g * t // self._problems
        return x.reshape(self._problems, rows, *x.shape[3:])

    def back(self, y: jax.Array) -> jax.Array:
        leading = self._leading
        if self._problems > leading[0]:
            leading = (self._problems, *leading[1:])
        return y.reshape(*leading, *y.shape[2:])
