"""`python -m tokumx.bench.paged`: decoding over a paged cache of unequal lengths."""

from dataclasses import dataclass

import jax
import numpy as np

from tokumx.bench.case import Benchmark, Case, Target
from tokumx.bench.cli import Choices, main
from tokumx.bench.paged_contestants import (
    GATHER,
    paged_contestants,
    tokumx_paged,
)
from tokumx.bench.records import Measurement
from tokumx.bench.runner import DISTRIBUTION
from tokumx.numerics import sample

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_REMARKS = (
    f"{GATHER} gathers every page of every sequence, then attends to them; xla is "
    "tokumx's own reference, which does so a token at a time.",
    "Sequence lengths are between half of the context and all of it; pages lie in "
    "random order. One new token a sequence.",
    "Attained speed counts the keys and values that are visible, read once.",
)


@dataclass(frozen=True, slots=True)
class PagedShape:
    """A decode step: R sequences of up to `context` keys."""

    r: int
    context: int
    page: int
    n: int
    k: int
    h: int
    dtype: str

    @property
    def name(self) -> str:
        suffix = "-bf16" if self.dtype == "bfloat16" else ""
        return (
            f"decode-b{self.r}-S{self.context}-page{self.page}-n{self.n}k{self.k}"
            f"-h{self.h}{suffix}"
        )

    @property
    def lengths(self) -> np.ndarray:
        """[R] int32, the same on every run."""
        rng = np.random.default_rng(0)
        half = self.context // 2
        return rng.integers(half, self.context, self.r, np.int32, endpoint=True)

    @property
    def flops(self) -> int:
        return 4 * self.n * self.h * int(self.lengths.sum())

    @property
    def bytes_moved(self) -> int:
        visible = 2 * self.k * int(self.lengths.sum())
        return self.h * (visible + 2 * self.r * self.n) * _ITEM_BYTES[self.dtype]

    def arrays(self) -> dict[str, jax.Array]:
        """Operands of ragged_paged_attention by argument name."""
        width = self.context // self.page
        pages = self.r * width
        order = np.random.default_rng(1).permutation(pages).astype(np.int32)
        cache = (pages, self.page, self.k, self.h)
        floats = {
            "query": (self.r, self.n, self.h),
            "key_cache": cache,
            "value_cache": cache,
        }
        return {
            name: sample(DISTRIBUTION, seed, shape, self.dtype)
            for seed, (name, shape) in enumerate(floats.items())
        } | {
            "query_start_loc": jax.numpy.arange(self.r + 1, dtype=np.int32),
            "seq_lens": jax.numpy.asarray(self.lengths),
            "page_table": jax.numpy.asarray(order.reshape(self.r, width)),
        }


def _shapes() -> list[PagedShape]:
    """Every pair of heads, page size and dtype; the rest one at a time."""
    dtypes = ("float32", "bfloat16")
    heads = ((8, 8), (8, 2), (32, 8))
    shapes = [
        PagedShape(8, 4096, page, n, k, 128, dtype)
        for dtype in dtypes
        for n, k in heads
        for page in (16, 64)
    ]
    others = ((8, 4096, 64), (8, 2048, 128), (16, 4096, 128), (16, 2048, 64))
    shapes += [
        PagedShape(r, context, 64, n, k, h, dtype)
        for dtype in dtypes
        for n, k in heads[:2]
        for r, context, h in others
    ]
    return shapes


def paged_case(shape: PagedShape) -> Case:
    return Case(
        name=shape.name,
        model="study of paged decoding",
        kind="decode",
        op="ragged_paged_attention",
        dtype=shape.dtype,
        sizes={
            "R": shape.r,
            "S": shape.context,
            "page": shape.page,
            "N": shape.n,
            "K": shape.k,
            "H": shape.h,
        },
        options={},
        works=("forward",),
        make_arrays=shape.arrays,
        reference=lambda a: tokumx_paged(a, "xla"),
        contestants=paged_contestants,
        differentiable=(),
        flops={"forward": shape.flops},
        bytes_moved=shape.bytes_moved,
        bound_by="bandwidth",
    )


def _any(m: Measurement) -> bool:
    del m
    return True


def paged_benchmark(choices: Choices) -> Benchmark:
    del choices
    cases = [paged_case(shape) for shape in _shapes()]
    text = f"paged decode: 8x over {GATHER}"
    return Benchmark(
        name="paged",
        title="Decoding over a paged cache",
        cases=cases,
        quick=frozenset(case.name for case in cases[:6]),
        targets=(Target(text, GATHER, 8.0, _any),),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(paged_benchmark)
