"""`python -m tokumx.bench.ragged_dot`: rows times the matrix of their group."""

import functools

import jax
import jax.numpy as jnp

from tokumx.bench.case import Benchmark, Case, Target
from tokumx.bench.cli import Choices, main
from tokumx.bench.ragged_dot_contestants import (
    LAX,
    ragged_contestants,
    tokumx_ragged,
)
from tokumx.bench.records import WORKS, Measurement
from tokumx.bench.runner import DISTRIBUTION
from tokumx.numerics import sample
from tokumx.ops.ragged_dot.shapes import SHAPES, RaggedShape

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
# A product has two in its backward.
_BACKWARD_TOO = 3
_REMARKS = (
    f"{LAX} is plain XLA, which computes every group densely on a CPU; xla is "
    "tokumx's own reference; torch loops over the groups, in its own process.",
    "Group sizes are random and use all rows; popular groups are about twice the mean.",
    "Attained speed counts each row once; traffic counts matrices of groups that "
    "have rows.",
)


def _arrays(shape: RaggedShape) -> dict[str, jax.Array]:
    """Operands by argument name; products keep a variance of about 1."""
    lhs = sample(DISTRIBUTION, 0, (shape.m, shape.k), shape.dtype)
    rhs = sample(DISTRIBUTION, 1, (shape.g, shape.k, shape.n)) * shape.k**-0.5
    return {
        "lhs": lhs,
        "rhs": rhs.astype(shape.dtype),
        "group_sizes": jnp.asarray(shape.group_sizes()),
    }


def _bytes_moved(shape: RaggedShape) -> int:
    used = int((shape.group_sizes() > 0).sum())
    numbers = shape.m * (shape.k + shape.n) + used * shape.k * shape.n
    return numbers * _ITEM_BYTES[shape.dtype]


def ragged_case(shape: RaggedShape) -> Case:
    flops = 2 * shape.m * shape.k * shape.n
    return Case(
        name=shape.name,
        model=shape.model,
        kind=shape.kind,
        op="ragged_dot",
        dtype=shape.dtype,
        sizes={axis: getattr(shape, axis.lower()) for axis in "MKNG"},
        options={},
        works=WORKS,
        make_arrays=functools.partial(_arrays, shape),
        reference=lambda a: tokumx_ragged(a, "xla"),
        contestants=lambda: ragged_contestants(shape.dtype),
        differentiable=("lhs", "rhs"),
        flops={"forward": flops, "forward_backward": _BACKWARD_TOO * flops},
        bytes_moved=_bytes_moved(shape),
        bound_by="matmul" if shape.kind == "prefill" else "bandwidth",
    )


def _study(work: str, groups: int, m: Measurement) -> bool:
    """f32, 2048 x 512 x 1024."""
    sizes = (m.sizes["M"], m.sizes["K"], m.sizes["N"], m.sizes["G"])
    return (m.work, m.dtype, sizes) == (work, "float32", (2048, 512, 1024, groups))


def _any(m: Measurement) -> bool:
    del m
    return True


def ragged_benchmark(choices: Choices) -> Benchmark:
    del choices
    cases = [ragged_case(shape) for shape in SHAPES]

    def target(text: str, at_least: float, work: str, groups: int) -> Target:
        applies = functools.partial(_study, work, groups)
        return Target(f"{text}: {at_least}x over {LAX}", LAX, at_least, applies)

    return Benchmark(
        name="ragged_dot",
        title="Grouped products against their peers",
        cases=cases,
        quick=frozenset(case.name for case in cases[:2]),
        targets=(
            target("8 experts", 7.7, "forward", 8),
            target("32 experts", 17.8, "forward", 32),
            target("8 experts, with backward", 5.5, "forward_backward", 8),
            Target(f"never over 5% slower than {LAX}", LAX, 0.95, _any),
        ),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(ragged_benchmark)
