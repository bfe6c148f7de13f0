"""`xla_fused`: sums over a row as products, and a backward of three passes.

XLA sums rows one number at a time on a CPU, where a product of a row with itself
uses its fast kernels. Backward, with c = s - m, ct the cotangent of `out` and g of
`total`:

  p = ct * c                             the only array of x's size besides dx
  d_bias = sum of ct, d_scale = sum of r * p      over the rows
  k1 = r**2 * (p @ scale) / D,  k2 = (ct @ scale) / D, or 0 for rms_norm
  dx = r * (ct * scale - k2 - c * k1) + g

Memory: p, f32.
"""

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import Arrays, CallSpec, Outputs
from tokumx.ops.normalization.reference import (
    LOCAL,
    Config,
    heuristic_config,
    search_space,
    summed,
    unsupported,
)

__all__ = [
    "LOCAL",
    "Config",
    "backward",
    "forward",
    "heuristic_config",
    "search_space",
    "unsupported",
]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    del config
    x, outputs = summed(arrays)
    wide = _widened(x)
    if call.option("is_centered"):
        outputs["mean"] = wide.mean(-1)
        wide = wide - outputs["mean"][..., None]
    squares = jnp.einsum("bgtd,bgtd->bgt", wide, wide)
    rstd = lax.rsqrt(squares / x.shape[-1] + call.option("eps"))
    out = wide * rstd[..., None]
    if "scale" in arrays:
        out = out * arrays["scale"][:, None, None]
    if "bias" in arrays:
        out = out + arrays["bias"][:, None, None]
    return outputs | {"out": out.astype(x.dtype), "rstd": rstd}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del config
    wide = _widened(outputs["total"] if "residual" in arrays else arrays["x"])
    ct, rstd = _widened(cotangents["out"]), outputs["rstd"]
    if call.option("is_centered"):
        wide = wide - outputs["mean"][..., None]
    # Computed once, not inside each of the sums.
    p = lax.optimization_barrier(ct * wide)
    scale = arrays.get("scale")
    dx = ct if scale is None else ct * scale[:, None, None]
    if call.option("is_centered"):
        dx = dx - _row_means(ct, scale)[..., None]
    k1 = rstd * rstd * _row_means(p, scale)
    dx = rstd[..., None] * (dx - wide * k1[..., None])
    if "total" in cotangents:
        dx = dx + _widened(cotangents["total"])
    dx = dx.astype(arrays["x"].dtype)
    gradients = {"x": dx, "residual": dx}
    if scale is not None:
        gradients["scale"] = _column_sums(rstd[..., None] * p, scale)
    if "bias" in arrays:
        gradients["bias"] = _column_sums(ct, arrays["bias"])
    return gradients


def _widened(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _row_means(rows: jax.Array, weights: jax.Array | None) -> jax.Array:
    """[B, G, T]: the mean over D of rows times weights."""
    if weights is None:
        return rows.mean(-1)
    if weights.shape[0] == 1:
        sums = jnp.einsum("bgtd,d->bgt", rows, weights[0])
    else:
        sums = jnp.einsum("bgtd,bd->bgt", rows, weights)
    return sums / rows.shape[-1]


def _column_sums(rows: jax.Array, like: jax.Array) -> jax.Array:
    """The sum over the rows, [B or 1, D] as `like`.

    Not a product: XLA's adds up thousands of rows one by one in f32.
    """
    return rows.sum((0, 1, 2))[None] if like.shape[0] == 1 else rows.sum((1, 2))
