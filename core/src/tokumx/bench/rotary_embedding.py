"""`python -m tokumx.bench.rotary_embedding`: turning heads by their positions."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.bench.case import (
    SUBJECT,
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
from tokumx.ops.rotary_embedding import rotary_embedding
from tokumx.ops.rotary_embedding.shapes import SHAPES, RotaryShape

PLAIN, TORCH, TORCH_COMPILED = "plain XLA", "torch", "torch compiled"
_REMARKS = (
    f"{PLAIN} and {TORCH} are what Llama's model code does: cosines and sines side by "
    f"side, and the halves of a head swapped; {TORCH} runs in its own process.",
    "Cosines and sines are computed beforehand, as a model does for all layers.",
)


def tokumx_rotary(
    arrays: Arrays, interleaved: bool, implementation: str | None = None
) -> Any:
    return rotary_embedding(
        arrays["x"],
        tables=(arrays["cos"], arrays["sin"]),
        interleaved=interleaved,
        implementation=implementation,
    )


def plain_rotary(arrays: Arrays, interleaved: bool) -> jax.Array:
    x = arrays["x"]
    cos, sin = (arrays[n][:, :, None] for n in ("cos", "sin"))
    size = 2 * cos.shape[-1]
    turning, rest = x[..., :size], x[..., size:]
    if interleaved:
        first, second = turning[..., ::2], turning[..., 1::2]
        both = (first * cos - second * sin, second * cos + first * sin)
        turned = jnp.stack(both, -1).reshape(turning.shape)
    else:
        first, second = jnp.split(turning, 2, -1)
        swapped = jnp.concatenate([-second, first], -1)
        cos, sin = (jnp.concatenate([y, y], -1) for y in (cos, sin))
        turned = turning * cos + swapped * sin
    return jnp.concatenate([turned.astype(x.dtype), rest], -1)


def _contestants(interleaved: bool) -> Sequence[Contestant]:
    options = {"interleaved": interleaved}
    return (
        InProcess(SUBJECT, lambda a: tokumx_rotary(a, interleaved)),
        InProcess(PLAIN, lambda a: plain_rotary(a, interleaved)),
        InTorch(TORCH, "rotary_embedding", options),
        InTorch(TORCH_COMPILED, "rotary_embedding_compiled", options),
    )


def rotary_case(shape: RotaryShape) -> Case:
    return Case(
        name=shape.name,
        model=shape.model,
        kind="decode" if shape.t == 1 else "prefill",
        op="rotary_embedding",
        dtype=shape.dtype,
        sizes={"B": shape.b, "T": shape.t, "N": shape.n, "H": shape.h, "R": shape.r},
        options={"interleaved": shape.interleaved},
        works=WORKS,
        make_arrays=shape.arrays,
        reference=lambda a: tokumx_rotary(a, shape.interleaved, "xla"),
        contestants=lambda: _contestants(shape.interleaved),
        differentiable=("x",),
        flops={"forward": shape.flops, "forward_backward": 2 * shape.flops},
        bytes_moved=shape.bytes_moved,
        bound_by="bandwidth",
    )


def _any(m: Measurement) -> bool:
    del m
    return True


def rotary_benchmark(choices: Choices) -> Benchmark:
    del choices
    cases = [rotary_case(shape) for shape in SHAPES]
    return Benchmark(
        name="rotary_embedding",
        title="Rotary embeddings against their peers",
        cases=cases,
        quick=frozenset(case.name for case in cases[:3]),
        targets=(Target(f"at most 5% slower than {PLAIN}", PLAIN, 0.95, _any),),
        remarks=_REMARKS,
    )


if __name__ == "__main__":
    main(rotary_benchmark)
