"""`xla_decode`: a few queries over a long key-value cache, in plain jax.

Decoding is bound by reading the cache once. Transposing it first, as
`xla_blocked` does, would read and write it once more, so here the loop runs
over key blocks in the caller's own layout, all key heads at once:

  for batch row:  for j in visited key blocks:
      k [bk, K, H] -> [K, bk, H] (in cache);  logits [K, G*T, bk];  softmax

Backward is `xla_blocked`'s: with few queries it is cheap, and rare.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pydantic
from jax import lax

from tokumx.contract import Arrays, CallSpec, DeviceSpec, Direction, Outputs
from tokumx.contract import Config as BaseConfig
from tokumx.ops.attention import xla_blocked
from tokumx.ops.attention.block_step import BlockStep, DotDtype
from tokumx.ops.attention.tiles import (
    Grid,
    Masking,
    Visits,
    cut_rows,
    join_rows,
    pad_axis,
)
from tokumx.pallas_lib.online_softmax import (
    SoftmaxState,
    add_sink,
    initial_state,
    normalised,
    row_outputs,
)

LOCAL = True
MAX_QUERIES = 16
_MIN_BLOCK = 64


class Config(BaseConfig):
    """Keys in a block, and the dtype of the products (see xla_blocked)."""

    block_kv: pydantic.PositiveInt
    dot_dtype: DotDtype = "float32"


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    t = call["query"].shape[1]
    if isinstance(t, int) and t > MAX_QUERIES:
        return f"query length must be <= {MAX_QUERIES}, got {t}"
    return xla_blocked.unsupported(call, device)


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    del call, direction
    return Config(
        block_kv=512, dot_dtype="float32" if device.platform == "cpu" else "input"
    )


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del device
    return [
        Config(block_kv=bk, dot_dtype=dtype)
        for bk in (64, 128, 256, 512, 1024, 2048)
        for dtype in xla_blocked.dot_dtypes(call, direction)
        if bk < 2 * call["key"].size(1)
    ]


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    keys, values = arrays["key"], arrays["value"]
    t, kv_heads = arrays["query"].shape[1], keys.shape[2]
    block_kv = _block_in_place(keys.shape[1], config.block_kv)
    grid = Grid.of(arrays, t, block_kv, kv_heads)
    masking = Masking(arrays, call, grid)
    step = BlockStep(call, config.dot_dtype, masking, keys.dtype)
    visits = Visits(masking)
    rows = cut_rows(arrays["query"], grid)  # [B, 1, K, G*T, H]
    keys = pad_axis(keys, 1, grid.padded_kv)
    values = pad_axis(values, 1, grid.padded_kv)
    sinks = xla_blocked.sink_rows(arrays, grid)

    def one_row(b: jax.Array) -> tuple[jax.Array, ...]:
        q = step.load(rows[b, 0])
        order, _, visited = visits.of(b, 0)

        def visit(n: jax.Array, state: SoftmaxState) -> SoftmaxState:
            j = order[n]
            k_j = step.load(_heads_first(keys, b, j, block_kv))
            v_j = step.load(_heads_first(values, b, j, block_kv))
            logits = step.logits(q, k_j, b, 0, j, masked=masking.may_mask)
            return step.update(state, logits, v_j, b, 0, j)

        state = initial_state(q.shape[:2], values.shape[3], step.accumulate, keys)
        state = lax.fori_loop(0, visited, visit, state)
        if sinks is not None:
            state = add_sink(state, sinks[b], step.unit)
        return normalised(state), *row_outputs(state, step.unit)

    results = lax.map(one_row, jnp.arange(grid.batch))
    joined = [join_rows(x[:, None], grid) for x in results]
    return xla_blocked.named_outputs(joined, keys.dtype)


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    blocks = xla_blocked.Config(
        block_q=MAX_QUERIES,
        block_kv=config.block_kv,
        block_heads=arrays["key"].shape[2],
    )
    return xla_blocked.backward(arrays, outputs, cotangents, call, blocks)


def _block_in_place(length: int, wanted: int) -> int:
    """A block that divides the cache, so that it need not be padded; a length
    with no such divisor is padded."""
    divisors = (d for d in range(min(wanted, length), _MIN_BLOCK - 1, -1))
    return next((d for d in divisors if length % d == 0), min(wanted, length))


def _heads_first(x: jax.Array, b: jax.Array, j: jax.Array, block: int) -> jax.Array:
    """Block j of row b of [B, S, K, H], as [K, block, H]."""
    _, _, k, h = x.shape
    return lax.dynamic_slice(x, (b, j * block, 0, 0), (1, block, k, h))[0].swapaxes(
        0, 1
    )
