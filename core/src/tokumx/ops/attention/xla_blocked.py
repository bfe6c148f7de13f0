"""`xla_blocked`: portable attention over blocks, in plain jax.

FlashAttention-2 (Dao 2023, arXiv:2307.08691) written as rolled loops: for
each cell (a batch row and hb key heads) and each query block, a loop with a
run-time trip count over the key blocks that the schedule lists, unmasked ones
first. Compile time does not depend on T or S.

  for cell:  for i in query blocks:  for j in visited key blocks:
      logits [hb, R, bk] = q_i k_j^T;  online softmax;  o_i += p v_j

Backward recomputes the weights from each row's saved maximum m and sum l, key
blocks outside, with the rows of the cotangent g and of delta = sum(p * dp)
divided by l beforehand:

  for cell:  for j in key blocks:  for i in visited query blocks:
      e = exp(q_i k_j^T - m_i);  dv_j += e^T (g_i / l_i)
      ds = e * ((g_i / l_i) v_j^T - delta_i / l_i)
      dk_j += ds^T q_i;  dq_i += ds k_j

Memory: operands cut into blocks (one copy), a few [hb, R, bk] f32 tiles, and
three f32 a row; nothing of size T x S. On a CPU the tiles should stay in the
L2 cache. See tiles.py for the layouts and masks.py for the schedule.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pydantic
from jax import lax

from tokumx.contract import (
    Arrays,
    CallSpec,
    DeviceSpec,
    Direction,
    Outputs,
    cpu_flags,
)
from tokumx.contract import Config as BaseConfig
from tokumx.ops.attention.block_step import BlockStep, DotDtype
from tokumx.ops.attention.tiles import (
    Grid,
    Masking,
    Visits,
    cut_keys,
    cut_rows,
    join_keys,
    join_rows,
)
from tokumx.pallas_lib.online_softmax import (
    SoftmaxState,
    add_sink,
    initial_state,
    normalised,
    row_outputs,
)
from tokumx.pallas_lib.varying import filled

LOCAL = True
_WHOLE_ROWS = 512  # queries of one head whose logits over all keys exist at once


class Config(BaseConfig):
    """Block sizes, in elements; each is cut down to the array's own size.

    Attributes:
      block_q: queries in a block.
      block_kv: keys in a block.
      block_heads: key heads worked on together; the largest common divisor
        with the number of key heads is used.
      dot_dtype: "float32" converts each block before its matrix products,
        "input" multiplies in the operands' dtype and accumulates in f32. In the
        backward that rounds the logits' gradients, which costs accuracy where
        keys share a large offset; no default does it.
    """

    block_q: pydantic.PositiveInt
    block_kv: pydantic.PositiveInt
    block_heads: pydantic.PositiveInt = 1
    dot_dtype: DotDtype = "float32"


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del device
    sizes = {
        *call["query"].shape[1:],
        *call["key"].shape[1:],
        *call["value"].shape[1:],
    }
    if not all(isinstance(d, int) for d in sizes):
        return "only the batch size may be symbolic"
    if 0 in sizes:
        return "an array is empty"
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    """Tiles of 256 x 256 for eight heads at a time: the product of a tile is then
    large enough for two threads, and half of it, 1 MiB in f32, fits an L2."""
    group = call["query"].size(2) // call["key"].size(2)
    return Config(
        block_q=max(256 // group, 16),
        block_kv=256,
        block_heads=8,
        dot_dtype=_dot_dtype(call, device) if direction == "forward" else "float32",
    )


def _dot_dtype(call: CallSpec, device: DeviceSpec) -> DotDtype:
    """The operands' own dtype where the device multiplies it natively."""
    if device.platform != "cpu":
        return "input"
    is_native = call["query"].dtype == "bfloat16" and (
        cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"}
    )
    return "input" if is_native else "float32"


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    t, s, kv_heads = call["query"].size(1), call["key"].size(1), call["key"].size(2)
    return [
        Config(block_q=bq, block_kv=bk, block_heads=hb, dot_dtype=dtype)
        for bq in (64, 128, 256, 512)
        for bk in (128, 256, 512, 1024)
        for hb in (1, 2, 4, 8)
        for dtype in dot_dtypes(call, direction)
        if bq < 2 * t and bk < 2 * s and kv_heads % hb == 0
    ]


def dot_dtypes(call: CallSpec, direction: Direction) -> Sequence[DotDtype]:
    """The choices of Config.dot_dtype that differ, and keep the error budget."""
    is_narrow = call["query"].dtype in ("bfloat16", "float16")
    return (
        ("float32", "input") if is_narrow and direction == "forward" else ("float32",)
    )


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    grid = Grid.of(arrays, config.block_q, config.block_kv, config.block_heads)
    masking = Masking(arrays, call, grid)
    step = BlockStep(call, config.dot_dtype, masking, arrays["query"].dtype)
    visits = Visits(masking)
    query = cut_rows(arrays["query"], grid)
    keys = cut_keys(arrays["key"], grid)
    values = cut_keys(arrays["value"], grid)
    sinks = sink_rows(arrays, grid)

    def one_cell(cell: jax.Array) -> tuple[jax.Array, ...]:
        k, v, q = _at(keys, cell), _at(values, cell), _at(query, cell)

        def one_block(i: jax.Array) -> tuple[jax.Array, ...]:
            q_i = step.load(_at(q, i))
            order, unmasked, visited = visits.of(cell, i)

            def visit(n: jax.Array, state: SoftmaxState, masked: bool) -> SoftmaxState:
                j = order[n]
                logits = step.logits(q_i, step.load(_at(k, j)), cell, i, j, masked)
                return step.update(state, logits, step.load(_at(v, j)), cell, i, j)

            state = initial_state(q_i.shape[:2], v.shape[-1], step.accumulate, keys)
            state = lax.fori_loop(
                0, unmasked, functools.partial(visit, masked=False), state
            )
            if masking.may_mask:
                state = lax.fori_loop(
                    unmasked, visited, functools.partial(visit, masked=True), state
                )
            if sinks is not None:
                state = add_sink(state, _at(sinks, cell), step.unit)
            return normalised(state), *row_outputs(state, step.unit)

        return lax.map(one_block, jnp.arange(grid.num_q))

    results = lax.map(one_cell, jnp.arange(grid.cells))
    return named_outputs([join_rows(x, grid) for x in results], query.dtype)


def inference(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    """Without a mask, whole rows of logits: XLA on a CPU then runs product,
    softmax and product as one kernel, as long as nobody needs the statistics."""
    grid = Grid.of(arrays, _WHOLE_ROWS, arrays["key"].shape[1], config.block_heads)
    masking = Masking(arrays, call, grid)
    step = BlockStep(call, config.dot_dtype, masking, arrays["query"].dtype)
    if "sinks" in arrays or not step.is_plain:
        return forward(arrays, call, config)
    query = cut_rows(arrays["query"], grid)
    keys, values = cut_keys(arrays["key"], grid), cut_keys(arrays["value"], grid)

    def one_cell(cell: jax.Array) -> tuple[jax.Array, ...]:
        k, v = step.load(keys[cell, 0]), step.load(values[cell, 0])
        return lax.map(
            lambda i: step.whole_rows(step.load(query[cell, i]), k, v),
            jnp.arange(grid.num_q),
        )

    results = lax.map(one_cell, jnp.arange(grid.cells))
    return named_outputs([join_rows(x, grid) for x in results], arrays["query"].dtype)


def named_outputs(results: Sequence[jax.Array], dtype: Any) -> Outputs:
    """The op's outputs from (out in f32, log-sum-exp, row maximum, row sum)."""
    out, lse, row_max, row_sum = results
    return {
        "out": out.astype(dtype),
        "lse": lse,
        # The backward's delta is a difference of nearly equal sums: from an
        # output rounded to bf16 it would be wrong by more than the rest.
        "out_wide": out,
        "row_max": row_max,
        "row_sum": row_sum,
    }


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    grid = Grid.of(arrays, config.block_q, config.block_kv, config.block_heads)
    masking = Masking(arrays, call, grid)
    step = BlockStep(call, config.dot_dtype, masking, arrays["query"].dtype)
    visits = Visits(masking, transpose=True)
    rows = backward_rows(arrays, outputs, cotangents, step.accumulate)
    q_rows, g_rows, m_rows, delta_rows = (
        cut_rows(rows[n], grid, padding) for n, padding in _ROW_PADDING.items()
    )
    keys, values = cut_keys(arrays["key"], grid), cut_keys(arrays["value"], grid)

    def one_cell(d_bias: Any, cell: jax.Array) -> Any:
        q, g = _at(q_rows, cell), _at(g_rows, cell)
        m, delta = _at(m_rows, cell), _at(delta_rows, cell)

        def one_block(carry: Any, j: jax.Array) -> Any:
            k_j = step.load(keys[cell, j])
            v_j = step.load(values[cell, j])
            order, unmasked, visited = visits.of(cell, j)

            def visit(n: jax.Array, carry: Any, masked: bool) -> Any:
                dq, d_bias, dk, dv = carry
                i = order[n]
                q_i, g_i = step.load(_at(q, i)), step.load(_at(g, i))
                weights, slope = step.weights(q_i, k_j, _at(m, i), cell, i, j, masked)
                dp, dropped = step.dropped(step.dot_t(g_i, v_j), weights, cell, i, j)
                dv = dv + step.t_dot(g_i, dropped)
                ds = weights * (dp - _at(delta, i)[..., None])
                ds = ds if slope is None else ds * slope
                d_bias = _add_to_bias(masking, d_bias, ds, cell, i, j)
                dk = dk + step.t_dot(q_i, ds)
                dq = lax.dynamic_update_index_in_dim(
                    dq, _at(dq, i) + step.dot(ds, k_j), i, 0
                )
                return dq, d_bias, dk, dv

            zeros = functools.partial(filled, dtype=step.accumulate, like=keys)
            # Gradients of the keys and values, transposed: [hb, H, bk].
            carry = (*carry, *(zeros(x.mT.shape, 0) for x in (k_j, v_j)))
            carry = lax.fori_loop(
                0, unmasked, functools.partial(visit, masked=False), carry
            )
            if masking.may_mask:
                carry = lax.fori_loop(
                    unmasked, visited, functools.partial(visit, masked=True), carry
                )
            dq, d_bias, dk, dv = carry
            return (dq, d_bias), (dk.mT, dv.mT)

        dq = filled(q.shape, 0, step.accumulate, keys)
        (dq, d_bias), (dk, dv) = lax.scan(
            one_block, (dq, d_bias), jnp.arange(grid.num_kv)
        )
        return d_bias, (dq, dk, dv)

    d_bias = _zero_bias(masking, step.accumulate, keys)
    d_bias, (dq, dk, dv) = lax.scan(one_cell, d_bias, jnp.arange(grid.cells))
    gradients = {
        "query": join_rows(dq, grid) * step.scale,
        "key": join_keys(dk, grid) * step.scale,
        "value": join_keys(dv, grid),
    }
    if "bias" in arrays:
        t, s = arrays["bias"].shape[2:]
        gradients["bias"] = d_bias[:, :, :t, :s]
    if "sinks" in arrays:
        gradients["sinks"] = sink_gradient(arrays["sinks"], rows, step.unit)
    return gradients


# Padded rows get exp(logit - inf) = 0, whatever their logits.
_ROW_PADDING = {"query": 0.0, "g": 0.0, "m": jnp.inf, "delta": 0.0}


def backward_rows(
    arrays: Arrays, outputs: Outputs, cotangents: Outputs, accumulate: Any
) -> dict[str, jax.Array]:
    """What the backward needs of each query row, [B, T, N, *], in f32."""
    g = cotangents["out"].astype(accumulate)
    delta = jnp.einsum("btnd,btnd->btn", g, outputs["out_wide"])
    delta = delta - cotangents["lse"].astype(accumulate)
    row_sum = outputs["row_sum"]
    # A row that saw no key has no gradient.
    inverse = jnp.where(row_sum == 0, 0, 1 / jnp.where(row_sum == 0, 1, row_sum))
    return {
        "query": arrays["query"],
        "g": g * inverse[..., None],
        "m": outputs["row_max"],
        "delta": delta * inverse,
    }


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(x, index, keepdims=False)


def sink_rows(arrays: Arrays, grid: Grid) -> jax.Array | None:
    """[B or 1, N] -> [C, hb, R]: a sink for each row."""
    if "sinks" not in arrays:
        return None
    sinks = arrays["sinks"]
    sinks = jnp.broadcast_to(sinks, (grid.batch, sinks.shape[1]))
    sinks = sinks.reshape(grid.cells, grid.block_heads, grid.group)
    return jnp.repeat(sinks, grid.block_q, axis=2)


def sink_gradient(
    sinks: jax.Array, rows: dict[str, jax.Array], unit: float
) -> jax.Array:
    """The sink's weight takes from every row what its value, 0, does not give."""
    weights = jnp.exp(sinks[:, None] - rows["m"] * unit)  # [B, T, N]
    gradient = -(weights * rows["delta"]).sum(1)
    return gradient if sinks.shape[0] > 1 else gradient.sum(0, keepdims=True)


def _zero_bias(masking: Masking, dtype: Any, like: jax.Array) -> jax.Array:
    shape = (0,) if masking.bias is None else masking.bias.shape
    return filled(shape, 0, dtype, like)


def _add_to_bias(
    masking: Masking,
    d_bias: jax.Array,
    ds: jax.Array,
    cell: jax.Array,
    i: jax.Array,
    j: jax.Array,
) -> jax.Array:
    if masking.bias is None:
        return d_bias
    grid = masking.grid
    starts, sizes = masking.logits_slice(d_bias.shape, cell, i, j)
    ds = ds.reshape(1, grid.block_heads * grid.group, grid.block_q, grid.block_kv)
    axes = [a for a in range(4) if sizes[a] == 1]
    block = ds.sum(axes, keepdims=True)
    old = lax.dynamic_slice(d_bias, starts, sizes)
    return lax.dynamic_update_slice(d_bias, old + block, starts)
