"""A tiny op, softplus-like in cost, with contestants that a test chooses."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tokumx.bench.case import Benchmark, Case, Contestant, InProcess, Target
from tokumx.bench.records import WORKS


def square(arrays: Any) -> jax.Array:
    return arrays["x"] * arrays["x"]


def make_case(contestants: Sequence[Contestant], name: str = "square") -> Case:
    return Case(
        name=name,
        model="none",
        kind="elementwise",
        op="square",
        dtype="float32",
        sizes={"T": 64},
        options={},
        works=WORKS,
        make_arrays=lambda: {"x": jnp.linspace(-1.0, 1.0, 64)},
        reference=square,
        contestants=lambda: contestants,
        differentiable=("x",),
        flops={"forward": 64, "forward_backward": 128},
        bytes_moved=512,
        bound_by="bandwidth",
    )


@pytest.fixture
def tiny_case() -> Callable[..., Case]:
    return make_case


@pytest.fixture
def tiny_benchmark() -> Callable[..., Benchmark]:
    """A benchmark of tokumx, which is right, and the contestants given."""

    def make(*contestants: Contestant, targets: Sequence[Target] = ()) -> Benchmark:
        ours = InProcess("tokumx", square)
        cases = [make_case([ours, *contestants])]
        return Benchmark("tiny", "Tiny", cases, frozenset({"square"}), targets)

    return make
