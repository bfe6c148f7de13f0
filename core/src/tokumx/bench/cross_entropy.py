"""`python -m tokumx.bench.cross_entropy`: the loss of a language model's head."""

from tokumx.bench.case import Benchmark, Case, Target
from tokumx.bench.cli import Choices, main
from tokumx.bench.cross_entropy_contestants import (
    BLOCKED,
    PLAIN,
    TOKAMAX,
    TORCH,
    loss_contestants,
    tokumx_loss,
)
from tokumx.bench.records import WORKS, Measurement
from tokumx.ops.linear_softmax_cross_entropy.shapes import SHAPES, HeadShape

# Products are most of the time, and XLA's are near the peak.
_NOT_SLOWER = 0.95
# Two operands' gradients for the product of the forward.
_BACKWARD_TOO = 3
_REMARKS = (
    f"{PLAIN} computes all logits and log_softmax in f32. {BLOCKED} holds a tile of "
    "logits at a time, for one product more in the backward; tokumx takes it by "
    "itself where the logits are many.",
    f"{TOKAMAX} ignores no token, so that those are masked outside, and needs a tied "
    f"weight transposed; {TORCH} runs in its own process.",
    "Weights are scaled for logits of variance 1; every eighth token is ignored.",
)


def loss_case(shape: HeadShape, torch_bf16: bool = False) -> Case:
    return Case(
        name=shape.name,
        model=shape.model,
        kind="training",
        op="linear_softmax_cross_entropy",
        dtype=shape.dtype,
        sizes={"N": shape.n, "D": shape.d, "V": shape.v},
        options={
            "weight_layout": shape.weight_layout,
            "logits_soft_cap": shape.logits_soft_cap,
        },
        works=WORKS,
        make_arrays=shape.arrays,
        reference=lambda a: tokumx_loss(a, shape, "xla"),
        contestants=lambda: loss_contestants(
            shape, has_torch=torch_bf16 or shape.dtype != "bfloat16"
        ),
        differentiable=("x", "weight"),
        flops={
            "forward": shape.flops,
            "forward_backward": _BACKWARD_TOO * shape.flops,
        },
        bytes_moved=shape.bytes_moved,
        bound_by="matmul",
    )


def _any(m: Measurement) -> bool:
    del m
    return True


def loss_benchmark(choices: Choices) -> Benchmark:
    cases = [loss_case(shape, choices.torch_bf16) for shape in SHAPES]
    return Benchmark(
        name="cross_entropy",
        title="Losses of a language model's head against their peers",
        cases=cases,
        quick=frozenset({cases[0].name}),
        targets=(Target(f"at most 5% slower than {PLAIN}", PLAIN, _NOT_SLOWER, _any),),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(loss_benchmark)
