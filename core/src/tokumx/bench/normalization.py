"""`python -m tokumx.bench.normalization`: rms_norm and layer_norm of rows."""

from tokumx.bench.case import Benchmark, Case, Target
from tokumx.bench.cli import Choices, main
from tokumx.bench.normalization_contestants import (
    PLAIN,
    PORTABLE,
    TOKAMAX,
    TORCH,
    norm_contestants,
    tokumx_norm,
)
from tokumx.bench.records import WORKS, Measurement
from tokumx.ops.normalization.shapes import SHAPES, NormShape

# A backward has a sum and three products a number more than its forward.
_BACKWARD_TOO = 3
_NOT_SLOWER = 0.95
_REMARKS = (
    f"{PLAIN} is the norm as a model writes it, statistics in f32; {PORTABLE} is "
    f"tokumx without its native kernels; {TOKAMAX} has no residual sum; {TORCH} runs "
    "in its own process.",
    "With a residual (add) the sum is an output too.",
)


def norm_case(shape: NormShape) -> Case:
    arrays = tuple(shape.arrays())
    return Case(
        name=shape.name,
        model=shape.model,
        kind="decode" if shape.n <= 16 else "prefill",
        op=shape.op,
        dtype=shape.dtype,
        sizes={"N": shape.n, "D": shape.d},
        options={"has_residual": shape.has_residual},
        works=WORKS,
        make_arrays=shape.arrays,
        reference=lambda a: tokumx_norm(a, shape.op, "xla"),
        contestants=lambda: norm_contestants(shape.op, shape.has_residual),
        differentiable=arrays,
        flops={
            "forward": shape.flops,
            "forward_backward": _BACKWARD_TOO * shape.flops,
        },
        bytes_moved=shape.bytes_moved,
        bound_by="bandwidth",
    )


def _is_study(m: Measurement) -> bool:
    """rms_norm of f32 prefill rows, alone: what was studied with plain jax."""
    return (
        m.kind == "prefill"
        and m.dtype == "float32"
        and not m.options["has_residual"]
        and m.work == "forward"
    )


def _any(m: Measurement) -> bool:
    del m
    return True


def norm_benchmark(choices: Choices) -> Benchmark:
    del choices
    cases = [norm_case(shape) for shape in SHAPES]
    return Benchmark(
        name="normalization",
        title="Norms of rows against their peers",
        cases=cases,
        quick=frozenset(case.name for case in cases[:4]),
        targets=(
            Target(f"f32 forward: 1.7x over {PLAIN}", PLAIN, 1.7, _is_study),
            Target(f"at most 5% slower than {PLAIN}", PLAIN, _NOT_SLOWER, _any),
        ),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(norm_benchmark)
