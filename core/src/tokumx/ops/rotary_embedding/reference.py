"""`xla`: the definition of the rotary embedding, in plain jnp. The gold standard.

B batch, T positions, N heads of H numbers, of which the first R turn in pairs:

  turned[2 numbers of pair i] = [[cos_i, -sin_i], [sin_i, cos_i]] @ them

Pair i is the numbers i and i + R/2, or 2i and 2i + 1 if interleaved.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

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
    cos, sin = (arrays[n][:, :, None] for n in ("cos", "sin"))  # [B, T, 1, R / 2]
    return {"out": rotated(arrays["x"], cos, sin, call.option("interleaved"))}


def rotated(
    x: jax.Array, cos: jax.Array, sin: jax.Array, is_interleaved: bool
) -> jax.Array:
    """x [B, T, N, H] with its first R numbers turned, rounded once."""
    pairs = cos.shape[-1]
    turning, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    wide = turning.astype(cos.dtype)
    if is_interleaved:
        first, second = wide[..., ::2], wide[..., 1::2]
    else:
        first, second = wide[..., :pairs], wide[..., pairs:]
    both = (first * cos - second * sin, second * cos + first * sin)
    if is_interleaved:
        turned = jnp.stack(both, -1).reshape(wide.shape)
    else:
        turned = jnp.concatenate(both, -1)
    return jnp.concatenate([turned.astype(x.dtype), rest], -1)
