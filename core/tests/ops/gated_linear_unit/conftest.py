"""Operands, and a call that takes each weight as an argument of its own."""

import dataclasses
from typing import Any

import jax
import pytest

import tokumx
from tokumx.numerics import sample


@dataclasses.dataclass(frozen=True)
class Glu:
    """Small operands: leading axes, D, F, O."""

    lead: tuple[int, ...] = (9,)
    d: int = 24
    f: int = 40
    o: int = 17
    is_fused: bool = False
    has_bias: bool = True
    has_down: bool = True

    def operands(
        self, distribution: str = "normal", dtype: Any = "float32"
    ) -> dict[str, jax.Array]:
        shapes: dict[str, tuple[int, ...]] = {"x": (*self.lead, self.d)}
        if self.is_fused:
            shapes["weights"] = (self.d, 2, self.f)
        else:
            shapes["gate_weight"] = shapes["up_weight"] = (self.d, self.f)
        if self.has_bias:
            shapes["gate_bias"] = shapes["up_bias"] = (self.f,)
        if self.has_down:
            shapes["down_weight"] = (self.f, self.o)
        if self.has_down and self.has_bias:
            shapes["down_bias"] = (self.o,)
        out = {}
        for seed, (name, shape) in enumerate(shapes.items()):
            scale = shape[0] ** -0.5 if "weight" in name else 1.0
            # Only x is of the distribution: its products are huge enough.
            drawn = sample(distribution if name == "x" else "normal", seed, shape)
            out[name] = (drawn * scale).astype(dtype)
        return out


def gated_linear_unit(x: jax.Array, **given: Any) -> jax.Array:
    """tokumx's, with the parts of a pair apart, as numerics.check wants them."""
    weights = given.pop("weights", None)
    if weights is None:
        weights = given.pop("gate_weight"), given.pop("up_weight")
    if "gate_bias" in given:
        given["bias"] = given.pop("gate_bias"), given.pop("up_bias")
    return tokumx.gated_linear_unit(x, weights, **given)


@pytest.fixture(scope="session")
def glu():
    return Glu


@pytest.fixture(scope="session")
def call():
    return gated_linear_unit
