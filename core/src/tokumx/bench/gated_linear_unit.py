"""`python -m tokumx.bench.gated_linear_unit`: feed-forward blocks of a transformer."""

from tokumx.bench.case import Benchmark, Case, Target
from tokumx.bench.cli import Choices, main
from tokumx.bench.gated_linear_unit_contestants import (
    PLAIN,
    REFERENCE,
    TOKAMAX,
    TORCH,
    glu_contestants,
    tokumx_glu,
)
from tokumx.bench.records import WORKS, Measurement
from tokumx.ops.gated_linear_unit.shapes import SHAPES, GluShape

# Products are nearly all of the time, and XLA's are near the peak.
_NOT_SLOWER = 0.95
# Two operands' gradients for each product of the forward.
_BACKWARD_TOO = 3
_MOST_WEIGHTS = 2**26  # more take a CPU seconds a step
_QUICK = ("study-N512", "study-N1", "study-N1-bf16")
_REMARKS = (
    f"{PLAIN} is the block as a model writes it, in its own dtype; {REFERENCE} is "
    f"tokumx's reference, which accumulates in f32; {TOKAMAX}'s gated unit is followed "
    f"by a plain down projection; {TORCH} runs in its own process.",
    "Weights are scaled so that every product has a variance of about 1.",
)


def glu_case(shape: GluShape, torch_bf16: bool = False) -> Case:
    return Case(
        name=shape.name,
        model=shape.model,
        kind="decode" if shape.n == 1 else "prefill",
        op="gated_linear_unit",
        dtype=shape.dtype,
        sizes={"N": shape.n, "D": shape.d, "F": shape.f},
        options={"activation": shape.activation},
        works=WORKS,
        make_arrays=shape.arrays,
        reference=lambda a: tokumx_glu(a, shape.activation, "xla"),
        contestants=lambda: glu_contestants(
            shape.activation,
            shape.has_bias,
            has_torch=torch_bf16 or shape.dtype != "bfloat16",
        ),
        differentiable=tuple(shape.array_specs),
        flops={
            "forward": shape.flops,
            "forward_backward": _BACKWARD_TOO * shape.flops,
        },
        bytes_moved=shape.bytes_moved,
        bound_by="bandwidth" if shape.n == 1 else "matmul",
    )


def _any(m: Measurement) -> bool:
    del m
    return True


def _is_one_bf16_row(m: Measurement) -> bool:
    is_narrow = m.dtype == "bfloat16"
    return m.work == "forward" and is_narrow and m.sizes["N"] == 1


def glu_benchmark(choices: Choices) -> Benchmark:
    shapes = [s for s in SHAPES.values() if s.weight_elements <= _MOST_WEIGHTS]
    return Benchmark(
        name="gated_linear_unit",
        title="Gated linear units against their peers",
        cases=[glu_case(shape, choices.torch_bf16) for shape in shapes],
        quick=frozenset(_QUICK),
        targets=(
            Target(f"at most 5% slower than {PLAIN}", PLAIN, _NOT_SLOWER, _any),
            Target(f"one bf16 row: 5x over {PLAIN}", PLAIN, 5.0, _is_one_bf16_row),
        ),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(glu_benchmark)
