"""Who normalizes rows: tokumx, and its peers."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.bench.case import (
    SUBJECT,
    Absent,
    Arrays,
    Contestant,
    InProcess,
    InTorch,
)
from tokumx.ops.normalization import layer_norm, rms_norm

PLAIN, TOKAMAX, TORCH, PORTABLE = "plain XLA", "tokamax", "torch", "xla_fused"
TORCH_COMPILED = "torch compiled"
EPS = 1e-5
_OURS = {"rms_norm": rms_norm, "layer_norm": layer_norm}


def tokumx_norm(arrays: Arrays, op: str, implementation: str | None = None) -> Any:
    return _OURS[op](**arrays, eps=EPS, implementation=implementation)


def plain_norm(arrays: Arrays, op: str) -> Any:
    """As a model writes it: statistics in f32."""
    total = arrays["x"]
    if "residual" in arrays:
        total = total + arrays["residual"]
    wide = total.astype(jnp.promote_types(total.dtype, jnp.float32))
    if op == "layer_norm":
        wide = wide - wide.mean(-1, keepdims=True)
    out = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPS)
    out = out * arrays["scale"] + arrays.get("bias", 0)
    out = out.astype(total.dtype)
    return (out, total) if "residual" in arrays else out


def _tokamax(op: str, has_residual: bool) -> Contestant:
    if has_residual:
        return Absent(TOKAMAX, "it has no residual sum")

    def function(arrays: Arrays) -> jax.Array:
        import tokamax  # only where it takes part

        return tokamax.layer_norm(
            arrays["x"],
            scale=arrays["scale"],
            offset=arrays.get("bias"),
            epsilon=EPS,
            subtract_mean=op == "layer_norm",
        )

    return InProcess(TOKAMAX, function)


def norm_contestants(op: str, has_residual: bool) -> Sequence[Contestant]:
    options = {"op": op, "eps": EPS}
    return (
        InProcess(SUBJECT, lambda a: tokumx_norm(a, op)),
        InProcess(PLAIN, lambda a: plain_norm(a, op)),
        _tokamax(op, has_residual),
        InProcess(PORTABLE, lambda a: tokumx_norm(a, op, PORTABLE)),
        InTorch(TORCH, "norm", options),
        InTorch(TORCH_COMPILED, "norm_compiled", options),
    )
