"""`xla`: the definitions of both norms, in plain jnp. The gold standard.

B problems (1, or more under vmap), G x T rows of D numbers.

  s = x + residual, or x
  m = mean_d(s), or 0 for rms_norm,  r = rsqrt(mean_d((s - m)**2) + eps)
  out = (s - m) * r * scale + bias
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    NoConfig,
    Outputs,
)

Config = NoConfig
LOCAL = False


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del call, device
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
    x, outputs = summed(arrays)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if call.option("is_centered"):
        mean = wide.mean(-1, keepdims=True)
        outputs["mean"] = mean[..., 0]
        wide = wide - mean
    rstd = lax.rsqrt((wide * wide).mean(-1, keepdims=True) + call.option("eps"))
    out = wide * rstd
    if "scale" in arrays:
        out = out * arrays["scale"][:, None, None]
    if "bias" in arrays:
        out = out + arrays["bias"][:, None, None]
    return outputs | {"out": out.astype(x.dtype), "rstd": rstd[..., 0]}


def summed(arrays: Arrays) -> tuple[jax.Array, Outputs]:
    """The rows to normalize; also as the output `total` if they are a sum."""
    if "residual" not in arrays:
        return arrays["x"], {}
    # XLA may use the f32 sum before it is rounded; behind the barrier it cannot.
    total = lax.optimization_barrier(arrays["x"] + arrays["residual"])
    return total, {"total": total}
