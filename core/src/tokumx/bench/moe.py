"""`python -m tokumx.bench.moe`: mixture-of-experts layers, router to output."""

from dataclasses import dataclass

import jax

from tokumx.bench.case import Benchmark, Case, Target
from tokumx.bench.cli import Choices, main
from tokumx.bench.moe_contestants import (
    DENSE,
    LAX,
    TORCH,
    moe_contestants,
    tokumx_moe,
)
from tokumx.bench.records import WORKS, Measurement
from tokumx.bench.runner import DISTRIBUTION
from tokumx.numerics import sample

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
# A product has two in its backward.
_BACKWARD_TOO = 3
_REMARKS = (
    f"{LAX} sorts the choices, and has lax.ragged_dot multiply; {DENSE} sends every "
    f"token to every expert; {TORCH} loops over the experts, in its own process.",
    "Weights are random, so that experts are used about evenly. The router is part of "
    "the layer: softmax, top k, renormalized.",
    "Attained speed counts the chosen experts only.",
)


@dataclass(frozen=True, slots=True)
class MoeShape:
    """T tokens, E experts, k of them a token, widths D and F."""

    model: str
    t: int
    e: int
    k: int
    d: int
    f: int
    dtype: str

    @property
    def name(self) -> str:
        suffix = "-bf16" if self.dtype == "bfloat16" else ""
        return f"T{self.t}-E{self.e}-top{self.k}-D{self.d}-F{self.f}{suffix}"

    @property
    def flops(self) -> int:
        return 2 * self.t * self.d * (3 * self.k * self.f + self.e)

    @property
    def bytes_moved(self) -> int:
        weights = 3 * self.e * self.d * self.f + self.d * self.e
        return (weights + 2 * self.t * self.d) * _ITEM_BYTES[self.dtype]

    def arrays(self) -> dict[str, jax.Array]:
        """Operands of moe by argument name; products keep a variance of about 1."""
        sizes = {
            "x": (self.t, self.d),
            "router_weight": (self.d, self.e),
            "w_gate": (self.e, self.d, self.f),
            "w_up": (self.e, self.d, self.f),
            "w_down": (self.e, self.f, self.d),
        }
        return {
            name: (
                sample(DISTRIBUTION, seed, shape)
                * (1.0 if name == "x" else shape[-2] ** -0.5)
            ).astype(self.dtype)
            for seed, (name, shape) in enumerate(sizes.items())
        }


def _shapes() -> list[MoeShape]:
    """Widths are cut to what a CPU runs in well under a second."""
    return [
        MoeShape(model, t, e, k, d, f, dtype)
        for dtype in ("float32", "bfloat16")
        for model, t, e, k, d, f in (
            ("Mixtral 8x7B, an eighth of its widths", 2048, 8, 2, 512, 1024),
            ("32 experts, otherwise the same", 2048, 32, 2, 512, 1024),
            ("Qwen3-MoE 30B-A3B, a quarter of its widths", 128, 128, 8, 512, 192),
            ("gpt-oss 20B's experts, a quarter of their widths", 64, 32, 4, 720, 720),
        )
    ]


def moe_case(shape: MoeShape) -> Case:
    return Case(
        name=shape.name,
        model=shape.model,
        kind="prefill",
        op="moe",
        dtype=shape.dtype,
        sizes={axis: getattr(shape, axis.lower()) for axis in "TEKDF"},
        options={"renormalize": True},
        works=WORKS,
        make_arrays=shape.arrays,
        reference=lambda a: tokumx_moe(a, shape.k, "xla"),
        contestants=lambda: moe_contestants(shape.k, shape.dtype),
        differentiable=tuple(jax.eval_shape(shape.arrays)),
        flops={
            "forward": shape.flops,
            "forward_backward": _BACKWARD_TOO * shape.flops,
        },
        bytes_moved=shape.bytes_moved,
        bound_by="matmul",
    )


def _top_2_of(experts: int, m: Measurement) -> bool:
    sizes = m.sizes
    return m.work == "forward" and (sizes["E"], sizes["K"]) == (experts, 2)


def moe_benchmark(choices: Choices) -> Benchmark:
    del choices
    cases = [moe_case(shape) for shape in _shapes()]
    return Benchmark(
        name="moe",
        title="Mixture of experts against its peers",
        cases=cases,
        quick=frozenset(case.name for case in cases[:2]),
        targets=(
            Target(
                f"top 2 of 8 experts: 4.2x over {LAX}",
                LAX,
                4.2,
                lambda m: _top_2_of(8, m),
            ),
            Target(
                f"top 2 of 32 experts: 9x over {LAX}",
                LAX,
                9.0,
                lambda m: _top_2_of(32, m),
            ),
        ),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(moe_benchmark)
