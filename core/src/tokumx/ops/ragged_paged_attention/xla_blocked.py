"""`xla_blocked`: portable ragged paged attention over blocks of pages.

Rolled loops with run-time trip counts, so that each sequence costs what its
own lengths ask for, and compile time depends on none of them:

  for sequence:  for block of its new tokens:  for block of visible pages:
      k, v [K, bk, *] gathered;  logits [K, G * w, bk];  online softmax

All key heads are worked on together: their small matrix products run as one
batch, and devices that split the heads run the same program.

A block of tokens is w = 1, SHORT or block_q wide, the least that holds the
sequence's new tokens: a decoding sequence does not pay for a prefill's rows.
Sequences are written in ascending order, so that rows which overhang the end
of one are overwritten by the next, and cleared after the last.

Memory: one block of keys and values in the dtype of the products, a few
[K, G * w, bk] tiles, and copies of query and out padded by one block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import pydantic
from jax import lax
from jax.custom_batching import sequential_vmap

from tokumx.contract import Arrays, CallSpec, DeviceSpec, Direction, Outputs
from tokumx.contract import Config as BaseConfig
from tokumx.errors import UnsupportedError
from tokumx.ops.ragged_paged_attention.block_step import (
    BlockStep,
    DotDtype,
    masked_logits,
    without_garbage,
)
from tokumx.ops.ragged_paged_attention.pages import Cache, page_size_and_heads
from tokumx.ops.ragged_paged_attention.sequences import Index, Rules, Sequences
from tokumx.pallas_lib.online_softmax import (
    SoftmaxState,
    add_sink,
    initial_state,
    log_sum_exp,
    normalised,
)
from tokumx.pallas_lib.varying import filled

# The loops run over sequences, tokens and pages, never over heads: XLA can
# split the heads over devices by itself.
LOCAL = False
FORWARD_ONLY = True
SHORT = 16


class Config(BaseConfig):
    """Block sizes.

    Attributes:
      block_q: tokens in a block, where a sequence has more than SHORT new ones.
      block_kv: keys in a block; cut down to whole pages, at least one.
      decode_block_kv: likewise, where a sequence has one new token.
      key_dot: how queries and keys are multiplied; "float32" converts each
        block before, "input" uses the query's dtype and accumulates in f32.
      value_dot: likewise, weights and values; "input" rounds the weights.
    """

    block_q: pydantic.PositiveInt
    block_kv: pydantic.PositiveInt
    decode_block_kv: pydantic.PositiveInt
    key_dot: DotDtype = "float32"
    value_dot: DotDtype = "float32"


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del device
    if not call.is_static:
        return "no size may be symbolic"
    if any(0 in spec.shape for _, spec in call.arrays):
        return "an array is empty"
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Config:
    del direction
    _, keys, group = _sizes(call)
    is_cpu = device.platform == "cpu"
    is_exact = _narrow_keys_are_exact(call)
    # One row at a time (group 1) a CPU is slow at products of bf16, and always
    # at those of f16.
    is_fast = not is_cpu or (group > 1 and call["query"].dtype == "bfloat16")
    return _config(
        call,
        rows=256,
        block_kv=256,
        decode_block_kv=512 if keys >= 2048 else 256,
        key_dot="input" if is_exact and is_fast else "float32",
        value_dot="input" if is_exact and not is_cpu else "float32",
    )


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[Config]:
    del device, direction
    dots: tuple[tuple[DotDtype, DotDtype], ...] = (("float32", "float32"),)
    if _narrow_keys_are_exact(call):
        dots = (*dots, ("input", "float32"), ("input", "input"))
    configs = (
        _config(call, rows, block_kv, decode, *dtypes)
        for rows in (128, 256, 512)
        for block_kv in (256, 512)
        for decode in (128, 256, 512, 1024)
        for dtypes in dots
    )
    return list(dict.fromkeys(configs))


def _sizes(call: CallSpec) -> tuple[int, int, int]:
    """Tokens in the call, keys that a row of the page table has room for, and
    query heads a key head."""
    page_size, kv_heads = page_size_and_heads(call)
    tokens, heads = call["query"].size(0), call["query"].size(1)
    return tokens, page_size * call["page_table"].size(1), heads // kv_heads


def _narrow_keys_are_exact(call: CallSpec) -> bool:
    """The query is narrow, and can hold what the cache holds."""
    dtype = call["query"].dtype
    caches = {spec.dtype for name, spec in call.arrays if "_cache" in name}
    one_byte = {"int8", "float8_e4m3fn", "float8_e5m2"}
    return dtype in ("bfloat16", "float16") and caches <= {dtype, *one_byte}


def _config(
    call: CallSpec,
    rows: int,
    block_kv: int,
    decode_block_kv: int,
    key_dot: DotDtype,
    value_dot: DotDtype,
) -> Config:
    """With `rows` query rows for each key head; no block beyond the arrays."""
    tokens, keys, group = _sizes(call)
    return Config(
        block_q=max(min(rows // group, tokens), 1),
        block_kv=min(block_kv, keys),
        decode_block_kv=min(decode_block_kv, keys),
        key_dot=key_dot,
        value_dot=value_dot,
    )


def forward(arrays: Arrays, call: CallSpec, config: Config) -> Outputs:
    names = tuple(arrays)

    # vmap of a loop with a run-time trip count would run every example for as
    # long as the longest, under a mask.
    @sequential_vmap
    def run(*values: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _Batch.of(dict(zip(names, values, strict=True)), call, config).attend()

    return dict(zip(("out", "lse"), run(*arrays.values()), strict=True))


def backward(
    arrays: Arrays,
    outputs: Outputs,
    cotangents: Outputs,
    call: CallSpec,
    config: Config,
) -> Outputs:
    del arrays, outputs, cotangents, config
    raise UnsupportedError(
        f"{call.op}: xla_blocked has no gradient, it is for serving; got a gradient "
        f"of {call}. Pass implementation='xla', which has one."
    )


@dataclass(frozen=True)
class _Batch:
    """The operands of one call, cut and padded."""

    query: jax.Array  # [T + widest, N, H]
    table: jax.Array  # [R, 2 * W]
    row_pages: int  # W
    sinks: jax.Array | None  # [K, G]
    tokens: int
    widths: tuple[int, ...]
    config: Config
    cache: Cache
    sequences: Sequences
    rules: Rules
    step: BlockStep

    @classmethod
    def of(cls, arrays: Arrays, call: CallSpec, config: Config) -> "_Batch":
        query, table, sinks = arrays["query"], arrays["page_table"], arrays.get("sinks")
        cache = Cache.of(arrays)
        tokens = query.shape[0]
        widths = tuple(w for w in (1, SHORT) if w < min(config.block_q, tokens))
        widths = (*widths, min(config.block_q, tokens))
        row_pages = table.shape[1]
        return cls(
            query=jnp.pad(query, ((0, widths[-1]), (0, 0), (0, 0))),
            # Blocks start at any page, so the last one may overhang the row.
            table=jnp.pad(table, ((0, 0), (0, row_pages))),
            row_pages=row_pages,
            sinks=None if sinks is None else sinks.reshape(cache.kv_heads, -1),
            tokens=tokens,
            widths=widths,
            config=config,
            cache=cache,
            sequences=Sequences.of(arrays, row_pages * cache.page_size),
            rules=Rules.of(call),
            step=BlockStep(
                arrays, call, cache.kv_heads, config.key_dot, config.value_dot
            ),
        )

    def block_pages(self, width: int) -> int:
        """How many pages a block of tokens visits at once."""
        keys = self.config.decode_block_kv if width == 1 else self.config.block_kv
        return min(max(keys // self.cache.page_size, 1), self.row_pages)

    def attend(self) -> tuple[jax.Array, jax.Array]:
        rows, heads, _ = self.query.shape
        accumulate = self.step.accumulate
        out = filled(
            (rows, heads, self.cache.value_dim), 0, self.query.dtype, self.query
        )
        lse = filled((rows, heads), -jnp.inf, accumulate, self.query)
        out, lse = lax.fori_loop(
            0, self.sequences.count, self._one_sequence, (out, lse)
        )
        out, lse = out[: self.tokens], lse[: self.tokens]
        in_use = jnp.arange(self.tokens, dtype=jnp.int32) < self.sequences.end
        return (
            jnp.where(in_use[:, None, None], out, 0),
            jnp.where(in_use[:, None], lse, -jnp.inf),
        )

    def _one_sequence(
        self, i: jax.Array, outputs: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        length = self.sequences.query_length[i]
        narrower = 0
        for width in self.widths:
            holds = length > narrower
            if width != self.widths[-1]:
                holds = holds & (length <= width)
            blocks = jnp.where(holds, -(-length // width), 0)

            def one_block(
                n: jax.Array,
                outputs: tuple[jax.Array, jax.Array],
                width: int = width,
            ) -> tuple[jax.Array, jax.Array]:
                tokens = _Tokens.of(self.sequences, i, n * width, width)
                out, lse = self._attend_block(tokens)
                return (
                    lax.dynamic_update_slice_in_dim(outputs[0], out, tokens.row, 0),
                    lax.dynamic_update_slice_in_dim(outputs[1], lse, tokens.row, 0),
                )

            outputs = lax.fori_loop(0, blocks, one_block, outputs)
            narrower = width
        return outputs

    def _attend_block(self, tokens: "_Tokens") -> tuple[jax.Array, jax.Array]:
        """([w, N, D], log-sum-exp [w, N]) of a block of tokens."""
        q = lax.dynamic_slice_in_dim(self.query, tokens.row, tokens.width, 0)
        q = self.step.load_query(q)
        pages = self.block_pages(tokens.width)
        first_page, blocks = tokens.pages(self.rules, self.cache.page_size, pages)

        def visit(n: jax.Array, state: SoftmaxState) -> SoftmaxState:
            page = first_page + n * pages
            ids = lax.dynamic_slice(self.table, (tokens.sequence, page), (1, pages))[0]
            block = self.cache.read(ids, self.step.key_dtype, self.step.value_dtype)
            position = page * self.cache.page_size + jnp.arange(block.key.shape[1])
            block = without_garbage(block, position < tokens.kv_length)
            # Else XLA on a CPU converts inside of the products, and is slow at it.
            block = lax.optimization_barrier(block)
            visible = self.rules.visible(
                tokens.position[:, None], position, tokens.kv_length
            )
            logits = masked_logits(self.step.logits(q, block), visible)
            return self.step.update(state, logits, block)

        state = initial_state(
            q.shape[:2], self.cache.value_dim, self.step.accumulate, self.query
        )
        state = lax.fori_loop(0, blocks, visit, state)
        return self._rows(state, tokens.width)

    def _rows(self, state: SoftmaxState, width: int) -> tuple[jax.Array, jax.Array]:
        """The results of a block, in the order of query: [w, N, *]."""
        if self.sinks is not None:
            state = add_sink(
                state, jnp.repeat(self.sinks, width, axis=1), self.step.unit
            )
        out = normalised(state)
        if self.step.value_scale is not None:
            out = out * self.step.value_scale

        def in_order(x: jax.Array) -> jax.Array:  # [K, G * w, *] -> [w, N, *]
            x = x.reshape(x.shape[0], -1, width, *x.shape[2:])
            x = jnp.moveaxis(x, 2, 0)
            return x.reshape(width, -1, *x.shape[3:])

        out = in_order(out.astype(self.query.dtype))
        return out, in_order(log_sum_exp(state, self.step.unit))


class _Tokens(NamedTuple):
    """A block of new tokens of one sequence."""

    sequence: Index
    row: Index  # of its first token in query
    width: int
    position: jax.Array  # [w]
    last: Index  # position of its last token in use
    kv_length: Index

    @classmethod
    def of(cls, all_: Sequences, sequence: Index, start: Index, width: int) -> Self:
        first = all_.position[sequence] + start
        in_use = jnp.minimum(all_.query_length[sequence] - start, width)
        return cls(
            sequence=sequence,
            row=all_.first_row[sequence] + start,
            width=width,
            position=first + jnp.arange(width, dtype=jnp.int32),
            last=first + in_use - 1,
            kv_length=all_.kv_length[sequence],
        )

    def pages(self, rules: Rules, page_size: int, block: int) -> tuple[Index, Index]:
        """The first page that a token of the block sees, and from there on how
        many blocks of `block` pages."""
        first = rules.start(self.position[0]) // page_size
        end = rules.end(self.last, self.kv_length)
        keys = jnp.maximum(end - first * page_size, 0)
        return first, -(-keys // (block * page_size))
