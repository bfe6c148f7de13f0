"""`python -m tokumx.bench.quantized_matmul`: weights in 8 and 4 bits."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tokumx.bench.case import (
    SUBJECT,
    Absent,
    Arrays,
    Benchmark,
    Case,
    Contestant,
    InProcess,
    InTorch,
    Target,
)
from tokumx.bench.cli import Choices, main
from tokumx.bench.records import WORKS, Measurement
from tokumx.ops.quantized_matmul import quantized_matmul
from tokumx.ops.quantized_matmul.shapes import SHAPES, QuantizedShape
from tokumx.quant.packing import unpack_int4

FULL, PLAIN, PORTABLE, TORCH = "full weights", "plain XLA", "xla_blocked", "torch"
_SLOW_TORCH_BF16 = "bf16 is emulated on a CPU without AVX-512: minutes a case"
_REMARKS = (
    f"{FULL} is a product with the weights in x's dtype, {TORCH} the same in torch, in "
    f"its own process; {PLAIN} brings the weights back in the same program; {PORTABLE} "
    "is tokumx without its native kernels.",
    "All multiply with the same rounded weights.",
)


def tokumx_quantized(
    shape: QuantizedShape, arrays: Arrays, implementation: str | None = None
) -> jax.Array:
    weights = shape.weights(arrays["values"], arrays["scales"])
    return quantized_matmul(arrays["x"], weights, implementation=implementation)


def plain_quantized(shape: QuantizedShape, arrays: Arrays) -> jax.Array:
    """As a model writes it: weights brought back, then a product, in x's dtype."""
    values, dtype = arrays["values"], arrays["x"].dtype
    if shape.qtype == "int4":
        values = unpack_int4(values, 0)
    groups = values.reshape(arrays["scales"].shape[0], -1, values.shape[1])
    weights = groups.astype(jnp.float32) * arrays["scales"][:, None]
    return arrays["x"] @ weights.reshape(values.shape).astype(dtype)


def _contestants(shape: QuantizedShape) -> Sequence[Contestant]:
    return (
        InProcess(SUBJECT, lambda a: tokumx_quantized(shape, a)),
        InProcess(FULL, lambda a: a["x"] @ a["weights"]),
        InProcess(PLAIN, lambda a: plain_quantized(shape, a)),
        InProcess(PORTABLE, lambda a: tokumx_quantized(shape, a, PORTABLE)),
        Absent(TORCH, _SLOW_TORCH_BF16)
        if shape.dtype == "bfloat16"
        else InTorch(TORCH, "matmul", {}),
    )


def quantized_case(shape: QuantizedShape) -> Case:
    return Case(
        name=shape.name,
        model=shape.model,
        kind="decode" if shape.t <= 16 else "prefill",
        op="quantized_matmul",
        dtype=shape.dtype,
        sizes={"T": shape.t, "K": shape.k, "N": shape.n},
        options={"qtype": shape.qtype, "group_size": shape.group_size},
        works=WORKS,
        make_arrays=shape.arrays,
        reference=lambda a: tokumx_quantized(shape, a, "xla"),
        contestants=lambda: _contestants(shape),
        differentiable=("x",),
        flops={"forward": shape.flops, "forward_backward": 2 * shape.flops},
        bytes_moved=shape.bytes_moved,
        bound_by="matmul" if shape.t > 16 else "bandwidth",
    )


def _one_row(qtype: str, m: Measurement) -> bool:
    is_step = m.sizes["T"] == 1 and m.work == "forward" and m.dtype == "float32"
    return is_step and m.options["qtype"] == qtype


def _forward(m: Measurement) -> bool:
    return m.work == "forward"


def quantized_benchmark(choices: Choices) -> Benchmark:
    del choices
    cases = [quantized_case(shape) for shape in SHAPES]
    return Benchmark(
        name="quantized_matmul",
        title="Products with quantized weights against their peers",
        cases=cases,
        quick=frozenset(case.name for case in cases[:2]),
        targets=(
            Target(
                f"int8, one row: 1.6x over {FULL}",
                FULL,
                1.6,
                lambda m: _one_row("int8", m),
            ),
            Target(
                f"int4, one row: 2x over {FULL}",
                FULL,
                2.0,
                lambda m: _one_row("int4", m),
            ),
            Target(f"at most 5% slower than {PLAIN}", PLAIN, 0.95, _forward),
        ),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(quantized_benchmark)
