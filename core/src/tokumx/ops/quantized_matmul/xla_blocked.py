"""`xla_blocked`: some rows of the weights at a time, so that few bits are read.

  out = 0
  for each block of K:
      tile = values[block] - zero_points, in f32; times scales if they change along K
      out += x[:, block] @ tile
  out *= scales, if they are the same for all of K

Two 4-bit numbers of a byte are two tiles, of even and of odd k. Backward:
dx[:, block] = (ct * scales) @ tile^T.

Memory: a tile in f32, [block_k, N].
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import pydantic
from jax import lax

from tokumx.contract import Arrays, CallSpec, DeviceSpec, Direction, Outputs
from tokumx.contract import Config as BaseConfig
from tokumx.ops.quantized_matmul.reference import rounded, weights_of
from tokumx.pallas_lib.varying import filled
from tokumx.quant import QArray
from tokumx.quant.packing import int4_halves

LOCAL = True
_TILE_NUMBERS = 1 << 20


class Config(BaseConfig):
    """Rows of the weights in a tile, before they are fitted to groups of scales."""

    block_k: pydantic.PositiveInt = 256


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del device
    return None if call.is_static else "sizes must be known"


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    """A tile of about a million numbers, which a cache of some MB holds."""
    del device, direction
    columns = call["values"].size(-1)
    fitting = max(_TILE_NUMBERS // max(columns, 1), 1)
    return Config(block_k=min(max(1 << (fitting.bit_length() - 1), 32), 1024))


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del device, direction
    size = call["x"].size(-1)
    return [Config(block_k=b) for b in (64, 128, 256, 512, 1024) if b <= size]


def forward(arrays: Arrays, call: CallSpec, config: BaseConfig) -> Outputs:
    assert isinstance(config, Config)
    x = rounded(arrays["x"], call).astype(arrays["scales"].dtype)
    weights = weights_of(arrays, call)

    def one(x: jax.Array, weights: QArray) -> jax.Array:
        tiles = _Tiles(weights, config.block_k)
        out = tiles.scaled(tiles.times(lax.collapse(x, 0, x.ndim - 1)))
        return out.reshape(*x.shape[:-1], out.shape[-1])

    return {"out": _for_each_problem(one, x, weights)}


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: BaseConfig,
) -> Outputs:
    del outputs
    assert isinstance(config, Config)
    weights = weights_of(arrays, call)

    def one(ct: jax.Array, weights: QArray) -> jax.Array:
        tiles = _Tiles(weights, config.block_k)
        rows = tiles.scaled(lax.collapse(ct, 0, ct.ndim - 1))
        return tiles.transposed_times(rows).reshape(*ct.shape[:-1], weights.shape[0])

    dx = _for_each_problem(one, cotangents["out"], weights)
    if arrays["x"].shape[0] < dx.shape[0]:
        dx = dx.sum(0, keepdims=True)
    return {"x": dx}


def _for_each_problem(
    one: Callable[[jax.Array, QArray], jax.Array], x: jax.Array, weights: QArray
) -> jax.Array:
    """one(x[b], weights[b]) for all b; a size of 1 is shared."""
    first = jax.tree.map(lambda w: w[0], weights)
    if weights.shape[0] == 1:
        return one(x, first)  # problems are rows
    if x.shape[0] == 1:
        return lax.map(lambda w: one(x[0], w), weights)
    return lax.map(lambda args: one(*args), (x, weights))


class _Tiles:
    """Weights [K, N] as tiles, in the dtype of scales."""

    def __init__(self, weights: QArray, block_k: int):
        k = weights.shape[0]
        groups = weights.scales.shape[0]
        group = k // groups
        if weights.packed_axis is not None and group % 2:
            weights = weights.unpacked()
        self._weights = weights
        self._is_packed = weights.packed_axis is not None
        self._is_grouped = groups > 1
        self._step = 2 if self._is_packed else 1
        unit = group if self._is_grouped else self._step
        block = min(max(block_k // unit, 1) * unit, k)
        self._block, self._count, self._group = block, k // block, group
        self._k = k

    def scaled(self, rows: jax.Array) -> jax.Array:
        """Times scales, if tiles leave that to be done."""
        return rows if self._is_grouped else rows * self._weights.scales[0]

    def times(self, rows: jax.Array) -> jax.Array:
        """rows [R, K] @ tiles: [R, N]."""
        columns = self._weights.values.shape[-1]

        def add(i: jax.Array | int, out: jax.Array, size: int) -> jax.Array:
            part = lax.dynamic_slice_in_dim(rows, i * self._block, size, 1)
            for parity, tile in enumerate(self._tile(i * self._block, size)):
                out = out + _product(part[:, parity :: self._step], tile)
            return out

        out = filled((rows.shape[0], columns), 0, rows.dtype, rows)
        out = lax.fori_loop(0, self._count, lambda i, o: add(i, o, self._block), out)
        rest = self._k - self._count * self._block
        return add(self._count, out, rest) if rest else out

    def transposed_times(self, rows: jax.Array) -> jax.Array:
        """rows [R, N] @ tiles^T: [R, K]; computed as tiles @ rows^T."""
        across = rows.T

        def some(i: jax.Array | int, size: int) -> jax.Array:
            parts = [_product(t, across) for t in self._tile(i * self._block, size)]
            return jnp.stack(parts, 1).reshape(size, rows.shape[0])

        found = lax.map(lambda i: some(i, self._block), jnp.arange(self._count))
        out = lax.collapse(found, 0, 2)
        rest = self._k - self._count * self._block
        return (jnp.concatenate([out, some(self._count, rest)]) if rest else out).T

    def _tile(self, start: jax.Array | int, size: int) -> list[jax.Array]:
        """Rows [start, start + size): all of them, or the even and the odd ones."""
        weights, step = self._weights, self._step
        dtype = weights.scales.dtype
        bits = _rows(weights.values, start // step, size // step)
        values = int4_halves(bits) if self._is_packed else (bits,)
        tiles = [v.astype(dtype) for v in values]
        if weights.zero_points is not None:
            zero = self._over_rows(weights.zero_points, start, size).astype(dtype)
            tiles = [t - zero for t in tiles]
        if self._is_grouped:
            scales = self._over_rows(weights.scales, start, size)
            tiles = [t * scales for t in tiles]
        return tiles

    def _over_rows(
        self, scales: jax.Array, start: jax.Array | int, size: int
    ) -> jax.Array:
        """[S, M] -> [size / step, M]: a scale for each row of a tile."""
        if not self._is_grouped:
            return scales
        groups = _rows(scales, start // self._group, size // self._group)
        each = self._group // self._step
        wide = jnp.broadcast_to(
            groups[:, None], (groups.shape[0], each, scales.shape[1])
        )
        return wide.reshape(-1, scales.shape[1])


def _rows(x: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, start, size, 0)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, precision=lax.Precision.HIGHEST)
