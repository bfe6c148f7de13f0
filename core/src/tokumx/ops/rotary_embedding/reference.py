"""`xla`: the definition of the rotary embedding, in plain jnp. The gold standard.

B batch, T positions, N heads of H numbers, of which the first R turn in pairs:

  turned[2 numbers of pair i] = [[cos_i, -sin_i], [sin_i, cos_i]] @ them

Pair i is the numbers i and i + R/2, or 2i and 2i + 1 if interleaved.
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
    cos, sin = (arrays[n][:, :, None] for n in ("cos", "sin"))  # [B, T, 1, R / 2]
    return {"out": rotated(arrays["x"], cos, sin, call.option("interleaved"))}


def rotated(
    x: jax.Array, cos: jax.Array, sin: jax.Array, is_interleaved: bool
) -> jax.Array:
    """x [B, T, N, H] with its first R numbers turned, rounded once.

    Pairs are an axis of their own: XLA on a CPU writes a stack in one pass, where it
    takes three to 25 times as long for halves side by side.
    """
    pairs = cos.shape[-1]
    turning = x[..., : 2 * pairs]
    axis = -1 if is_interleaved else -2
    shape = (pairs, 2) if is_interleaved else (2, pairs)
    wide = turning.reshape(*x.shape[:-1], *shape).astype(cos.dtype)
    first, second = (lax.index_in_dim(wide, i, axis, keepdims=False) for i in (0, 1))
    both = (first * cos - second * sin, second * cos + first * sin)
    turned = jnp.stack(both, axis).reshape(turning.shape).astype(x.dtype)
    if 2 * pairs == x.shape[-1]:
        return turned
    return x.at[..., : 2 * pairs].set(turned)
