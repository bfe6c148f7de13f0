"""`xla_blocked`: portable; logits exist one tile at a time.

R rows, D width, V words; tiles of block_rows x block_vocab.

  for i in row blocks:  for j in word blocks:
      z [br, bv] = x_i w_j;  online softmax: maximum, sum of exp, label's logit

Backward computes the logits again. With a, b, c the gradients of log_sum / sum
of exp, label and logit_sum, each one number a row:

  for j in word blocks:  for i in row blocks:
      dz = a_i exp(z - max_i) + b_i [v = label_i] + c_i
      dx_i += dz w_j^T;  dw_j += x_i^T dz

Words are the outer loop, so that dw_j [D, bv] is summed in f32, rounded once and
written once, and only dx [R, D] f32 is updated many times. The last block of
either axis is moved back to end with the array, and what it shares with the one
before is masked: nothing is padded or copied.

Memory beside operands and gradients: a few [br, bv] f32 tiles, dx in f32,
dw_j, and four f32 a row.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pydantic
from jax import lax

from tokumx.contract import Arrays, CallSpec, DeviceSpec, Direction, Outputs
from tokumx.contract import Config as BaseConfig
from tokumx.ops.linear_softmax_cross_entropy.logits import (
    Logits,
    finite_max,
    is_removed,
)
from tokumx.pallas_lib.varying import filled

LOCAL = True

Array = jax.Array
Index = Any


class Config(BaseConfig):
    """Tile sizes, in elements; each is cut down to the array's own size.

    Attributes:
      block_rows: tokens in a tile.
      block_vocab: words in a tile.
      dot_dtype: "float32" converts each block before its matrix products,
        "input" multiplies in the operands' dtype and accumulates in f32, which
        rounds the logits' gradients in the backward.
    """

    block_rows: pydantic.PositiveInt
    block_vocab: pydantic.PositiveInt
    dot_dtype: Literal["float32", "input"]


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del device
    if not call.is_static:
        return "tiles need static shapes"
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    """Measured on a CPU; elsewhere larger tiles keep matrix units busy."""
    del call, direction
    if device.platform == "cpu":
        return Config(block_rows=1024, block_vocab=2048, dot_dtype="float32")
    return Config(block_rows=2048, block_vocab=4096, dot_dtype="input")


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del call, direction
    dot: Literal["float32", "input"]
    dot = "float32" if device.platform == "cpu" else "input"
    return [
        Config(block_rows=rows, block_vocab=vocab, dot_dtype=dot)
        for rows in (256, 512, 1024, 2048)
        for vocab in (512, 1024, 2048, 4096)
    ]


@dataclass(frozen=True)
class Span:
    """An axis of `size` cut into blocks; the last one ends with the axis."""

    size: int
    block: int

    @classmethod
    def of(cls, size: int, block: int) -> "Span":
        return cls(size, min(size, block))

    @property
    def count(self) -> int:
        return -(-self.size // self.block) if self.size else 0

    def start(self, i: Index) -> Array:
        return jnp.minimum(i * self.block, self.size - self.block).astype(jnp.int32)

    def is_own(self, i: Index) -> Array | None:
        """[block]: not in the block before; None where that is so for all."""
        if not self.block or self.size % self.block == 0:
            return None
        return self.start(i) + jnp.arange(self.block, dtype=jnp.int32) >= i * self.block

    def cut(self, x: Array, i: Index, axis: int = 0) -> Array:
        return lax.dynamic_slice_in_dim(x, self.start(i), self.block, axis)

    def put(self, x: Array, part: Array, i: Index, axis: int = 0) -> Array:
        return lax.dynamic_update_slice_in_dim(x, part, self.start(i), axis)


class _Tiles:
    """One problem's operands in blocks."""

    def __init__(self, one: Arrays, call: CallSpec, config: Config):
        weight = one["weight"]
        self.form = Logits.of(call, one["x"], weight, config.dot_dtype)
        self.one = one
        self.rows = Span.of(one["x"].shape[0], config.block_rows)
        self.vocab = Span.of(weight.shape[self.form.vocab_axis], config.block_vocab)
        self.needs_sum = call.option("needs_sum")

    def labels(self, i: Index) -> Array:
        return self.rows.cut(self.one["labels"], i)

    def x(self, i: Index) -> Array:
        return self.form.rows(self.rows.cut(self.one["x"], i), self.labels(i))

    def weight(self, j: Index) -> Array:
        axis = self.form.vocab_axis
        return self.form.weight(self.vocab.cut(self.one["weight"], j, axis))

    def bias(self, j: Index) -> Array | None:
        return self.vocab.cut(self.one["bias"], j) if "bias" in self.one else None

    def kept(self, j: Index) -> Array | None:
        """[bv]: words of this block that are not removed; None if that is all."""
        own, bias = self.vocab.is_own(j), self.bias(j)
        if bias is None:
            return own
        kept = ~is_removed(bias)
        return kept if own is None else kept & own

    def logits(self, x_i: Array, w_j: Array, j: Index) -> tuple[Array, Array | None]:
        """[br, bv], -inf for words of another block; and the cap's slope."""
        z, slope = self.form.finished(self.form.product(x_i, w_j), self.bias(j))
        own = self.vocab.is_own(j)
        return (z if own is None else jnp.where(own, z, -jnp.inf)), slope


# Forward


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    tokens = arrays["x"].shape[1:3]
    run = functools.partial(_forward_one, call=call, config=config)
    outputs = _each_problem(run, arrays)
    return {n: y.reshape(y.shape[0], *tokens) for n, y in outputs.items()}


def _each_problem(
    run: Callable[[dict[str, Array]], dict[str, Array]], arrays: Mapping[str, Array]
) -> dict[str, Array]:
    """run, one problem after another; arrays of batch 1 are in all of them."""
    flat = {n: _rows_merged(n, x) for n, x in arrays.items()}
    shared = {n: x[0] for n, x in flat.items() if x.shape[0] == 1}
    own = {n: x for n, x in flat.items() if n not in shared}
    if not own:
        return {n: y[None] for n, y in run(shared).items()}
    return lax.map(lambda one: run({**shared, **one}), own)


def _rows_merged(name: str, x: Array) -> Array:
    """[B, G, T, ...] -> [B, R, ...]."""
    if name in ("weight", "bias"):
        return x
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


_STATISTICS = ("row_max", "log_sum", "label", "logit_sum")


def _forward_one(
    one: dict[str, Array], call: CallSpec, config: Config
) -> dict[str, Array]:
    tiles = _Tiles(one, call, config)
    rows, vocab = tiles.rows, tiles.vocab
    number = functools.partial(filled, dtype=tiles.form.accumulate, like=one["x"])

    def one_block(i: Index, found: dict[str, Array]) -> dict[str, Array]:
        x_i, labels = tiles.x(i), tiles.labels(i)

        def visit(j: Index, state: tuple[Array, ...]) -> tuple[Array, ...]:
            z, _ = tiles.logits(x_i, tiles.weight(j), j)
            return _updated(tiles, state, z, labels, j)

        zeros = number((rows.block,), 0)
        state = (number((rows.block,), -jnp.inf), zeros, zeros, zeros, number((), 0))
        state = lax.fori_loop(0, vocab.count, visit, state)
        row_max, total, label, logit_sum, _ = state
        is_here = (labels >= 0) & (labels < vocab.size)
        label = jnp.where(is_here, label - finite_max(row_max), 0)
        values = (row_max, jnp.log(total), label, logit_sum)
        return {
            n: rows.put(found[n], v, i)
            for n, v in zip(_STATISTICS, values, strict=True)
        }

    found = {n: number((rows.size,), 0) for n in _STATISTICS}
    return lax.fori_loop(0, rows.count, one_block, found)


def _updated(
    tiles: _Tiles, state: tuple[Array, ...], z: Array, labels: Array, j: Index
) -> tuple[Array, ...]:
    """Maximum, sum of exp, label's logit, and sum and number of logits that are
    not removed, with one tile more."""
    row_max, total, label, logit_sum, seen = state
    larger = jnp.maximum(row_max, z.max(1))
    old, new = finite_max(row_max), finite_max(larger)
    total = total * jnp.exp(row_max - new) + jnp.exp(z - new[:, None]).sum(1)
    if tiles.needs_sum:
        kept, shifted = tiles.kept(j), z - new[:, None]
        shifted = shifted if kept is None else jnp.where(kept, shifted, 0)
        logit_sum = logit_sum + seen * (old - new) + shifted.sum(1)
        words = tiles.vocab.block if kept is None else kept.sum(dtype=seen.dtype)
        seen = seen + words
    place = labels - tiles.vocab.start(j)
    first = j * tiles.vocab.block
    is_here = (labels >= first) & (labels < first + tiles.vocab.block)
    index = jnp.where(is_here, place, 0)[:, None]
    picked = jnp.take_along_axis(z, index, 1, mode="clip")[:, 0]
    return larger, total, jnp.where(is_here, picked, label), logit_sum, seen


# Backward


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    total = jnp.exp(outputs["log_sum"])
    # A row of nothing but -inf has no gradient.
    inverse = jnp.where(total == 0, 0, 1 / jnp.where(total == 0, 1, total))
    of_row = {
        "max": finite_max(outputs["row_max"]),
        "a": cotangents["log_sum"] * inverse,
        "b": cotangents["label"],
        "c": cotangents["logit_sum"],
    }
    run = functools.partial(_backward_one, call=call, config=config)
    gradients = _each_problem(run, {**arrays, **of_row})
    gradients["x"] = gradients["x"].reshape(arrays["x"].shape)
    return gradients


def _backward_one(
    one: dict[str, Array], call: CallSpec, config: Config
) -> dict[str, Array]:
    tiles = _Tiles(one, call, config)
    rows, vocab, form = tiles.rows, tiles.vocab, tiles.form
    zeros = functools.partial(filled, value=0, like=one["x"])
    width = one["x"].shape[1]

    def one_block(j: Index, gradients: dict[str, Array]) -> dict[str, Array]:
        w_j = tiles.weight(j)

        def visit(i: Index, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            dx, dw_j, db_j = sums
            x_i = tiles.x(i)
            dz = _logit_gradients(tiles, x_i, w_j, i, j)
            dx = rows.put(dx, rows.cut(dx, i) + form.times_weight(dz, w_j), i)
            dw_j = dw_j + form.times_rows(x_i, dz)
            return dx, dw_j, (db_j + dz.sum(0) if "bias" in one else db_j)

        sums = (
            gradients["x"],
            zeros((width, vocab.block), dtype=form.accumulate),
            zeros((vocab.block,), dtype=form.accumulate),
        )
        dx, dw_j, db_j = lax.fori_loop(0, rows.count, visit, sums)
        dw_j = dw_j if form.vocab_axis == 1 else dw_j.T
        new = {"x": dx, "weight": _with(tiles, gradients, "weight", dw_j, j)}
        if "bias" in one:
            new["bias"] = _with(tiles, gradients, "bias", db_j, j)
        return new

    gradients = {n: zeros(one[n].shape, dtype=one[n].dtype) for n in _graded(one)}
    gradients["x"] = gradients["x"].astype(form.accumulate)
    return lax.fori_loop(0, vocab.count, one_block, gradients)


def _graded(one: Mapping[str, Array]) -> list[str]:
    return [n for n in ("x", "weight", "bias") if n in one]


def _logit_gradients(
    tiles: _Tiles, x_i: Array, w_j: Array, i: Index, j: Index
) -> Array:
    """[br, bv]; zeros in rows and words of another block."""
    z, slope = tiles.logits(x_i, w_j, j)
    row_max, a, b, c = (tiles.rows.cut(tiles.one[n], i) for n in ("max", *"abc"))
    own = tiles.rows.is_own(i)
    if own is not None:
        a, b, c = (jnp.where(own, n, 0) for n in (a, b, c))
    if tiles.form.temperature != 1.0:
        a, b, c = (n / tiles.form.temperature for n in (a, b, c))
    word = tiles.vocab.start(j) + jnp.arange(tiles.vocab.block, dtype=jnp.int32)
    is_label = word == tiles.labels(i)[:, None]
    dz = jnp.exp(z - row_max[:, None]) * a[:, None]
    dz = jnp.where(is_label, dz + b[:, None], dz)
    if tiles.needs_sum:
        dz = dz + c[:, None]
    if slope is not None:
        dz = dz * slope
    kept = tiles.kept(j)
    return dz if kept is None else jnp.where(kept, dz, 0)


def _with(
    tiles: _Tiles, gradients: Mapping[str, Array], name: str, part: Array, j: Index
) -> Array:
    """The gradient with the words of block j filled in."""
    old, axis = gradients[name], tiles.form.vocab_axis if name == "weight" else 0
    part = part.astype(old.dtype)
    own = tiles.vocab.is_own(j)
    if own is not None:
        shape = [1] * part.ndim
        shape[axis] = tiles.vocab.block
        part = jnp.where(own.reshape(shape), part, tiles.vocab.cut(old, j, axis))
    return tiles.vocab.put(old, part, j, axis)
