"""`python -m tokumx.bench.attention`: attention against its peers."""

import jax

from tokumx.bench.attention_contestants import (
    EINSUM,
    FLOAT32_SUBJECT,
    HEADS_MAJOR,
    TOKAMAX,
    TORCH,
    attention_contestants,
    tokumx_attention,
)
from tokumx.bench.case import Benchmark, Case, Target
from tokumx.bench.cli import Choices, main
from tokumx.bench.records import WORKS, Measurement, Work
from tokumx.bench.runner import DISTRIBUTION
from tokumx.numerics import sample
from tokumx.ops.attention.shapes import SHAPES, AttentionShape

# A backward has five products where a forward has two.
_BACKWARD_TOO = 3.5
_QUICK = frozenset(
    {
        "short-T128-h64",
        "causal-T512-h64",
        "causal-T2048-h64",
        "full-T1024-h64",
        "decode-n8k8-h64",
        "decode-n8k2-h128-bf16",
    }
)
_REMARKS = (
    f"{EINSUM} is plain jax with f32 logits and softmax, in the caller's layout; "
    f"{HEADS_MAJOR} transposes the operands first. {TOKAMAX} is "
    "implementation='xla_chunked'; torch is scaled_dot_product_attention in its "
    "own process, on the same arrays.",
    "forward_backward is the output and the gradients of a fixed cotangent.",
    "Attained speed counts visible (query, key) pairs only: 4 * H flops a pair and "
    "head forward, 3.5 times that with the backward.",
    f"'{FLOAT32_SUBJECT}' is tokumx on float32 copies of a bf16 case's inputs.",
)


def attention_benchmark(choices: Choices) -> Benchmark:
    """Every shape of ops/attention/shapes.py."""
    return Benchmark(
        name="attention",
        title="Attention against its peers",
        cases=[attention_case(s, choices.torch_bf16) for s in SHAPES.values()],
        quick=_QUICK,
        targets=TARGETS,
        remarks=_REMARKS,
    )


def attention_case(shape: AttentionShape, torch_bf16: bool = False) -> Case:
    """A case from a shape; only a prefill is trained."""
    is_prefill = shape.kind == "prefill"
    return Case(
        name=shape.name,
        model=shape.model,
        kind=shape.kind,
        op="dot_product_attention",
        dtype=shape.dtype,
        sizes={axis: getattr(shape, axis.lower()) for axis in "BTSNKH"},
        options=shape.options,
        works=WORKS if is_prefill else ("forward",),
        make_arrays=lambda: _arrays(shape),
        reference=lambda a: tokumx_attention(a, shape, "xla"),
        contestants=lambda: attention_contestants(shape, torch_bf16),
        differentiable=tuple(shape.array_specs),
        flops=_flops(shape),
        bytes_moved=shape.bytes_moved,
        bound_by="matmul" if is_prefill else "bandwidth",
    )


def _arrays(shape: AttentionShape) -> dict[str, jax.Array]:
    return {
        name: sample(DISTRIBUTION, seed, spec.to_jax().shape, spec.to_jax().dtype)
        for seed, (name, spec) in enumerate(shape.array_specs.items())
    }


def _flops(shape: AttentionShape) -> dict[Work, int]:
    return {
        "forward": shape.flops,
        "forward_backward": int(shape.flops * _BACKWARD_TOO),
    }


def _is_long_causal(m: Measurement, work: Work) -> bool:
    return (
        m.work == work
        and m.dtype == "float32"
        and m.kind == "prefill"
        and bool(m.options["is_causal"])
        and m.sizes["T"] >= 2048
    )


def _long_forward(m: Measurement) -> bool:
    return _is_long_causal(m, "forward")


def _long_backward(m: Measurement) -> bool:
    return _is_long_causal(m, "forward_backward")


def _is_decode(m: Measurement) -> bool:
    return m.kind == "decode"


def _is_bf16(m: Measurement) -> bool:
    return m.dtype == "bfloat16"


def _any(m: Measurement) -> bool:
    del m
    return True


_LONG = "f32 causal T >= 2048"
TARGETS = (
    Target(f"{_LONG} forward: 4x over einsum", EINSUM, 4.0, _long_forward),
    Target(f"{_LONG} forward: 2.5x over tokamax", TOKAMAX, 2.5, _long_forward),
    Target(f"{_LONG} forward: 0.85x of torch", TORCH, 0.85, _long_forward),
    Target(f"{_LONG} with backward: 4.5x over einsum", EINSUM, 4.5, _long_backward),
    Target(f"{_LONG} with backward: 3x over tokamax", TOKAMAX, 3.0, _long_backward),
    Target("decode: 3x over einsum", EINSUM, 3.0, _is_decode),
    Target("bf16: no slower than f32", FLOAT32_SUBJECT, 1.0, _is_bf16),
    Target(f"never more than 5% slower than {EINSUM}", EINSUM, 1 / 1.05, _any),
    Target(
        f"never more than 5% slower than {HEADS_MAJOR}", HEADS_MAJOR, 1 / 1.05, _any
    ),
)


if __name__ == "__main__":
    main(attention_benchmark)
