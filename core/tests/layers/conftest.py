"""A mixture-of-experts layer as a loop over its experts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx

T, D, F, E, K = 24, 6, 10, 8, 3


def dense_moe(
    arrays: dict[str, jax.Array],
    k: int,
    unit: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    **routing: Any,
) -> jax.Array:
    """Every expert sees every token; most results get the weight 0."""
    x = arrays["x"]
    if "router_logits" in arrays:
        logits = arrays["router_logits"]
    else:
        logits = x @ arrays["router_weight"] + arrays.get("router_bias", 0)
    found = tokumx.top_k_routing(logits, k, **routing, implementation="xla")
    unit = unit or (lambda gate, up: gate * jax.nn.sigmoid(gate) * up)
    names = ("w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down")
    stacked = {n: arrays[n] for n in names if n in arrays}

    def one_expert(out, indexed):
        e, own = indexed
        weight = jnp.where(found.experts == e, found.weights, 0).sum(-1, keepdims=True)
        gate = x @ own["w_gate"] + own.get("b_gate", 0)
        up = x @ own["w_up"] + own.get("b_up", 0)
        down = unit(gate, up) @ own["w_down"] + own.get("b_down", 0)
        return out + weight * down, None

    order = jnp.arange(arrays["w_gate"].shape[0])
    return jax.lax.scan(one_expert, jnp.zeros_like(x), (order, stacked))[0]


def make_moe_arrays(
    shape: tuple[int, ...] = (T,),
    *,
    experts: int = E,
    width: int = D,
    hidden: int = F,
    has_biases: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = {
        "x": (*shape, width),
        "router_weight": (width, experts),
        "w_gate": (experts, width, hidden),
        "w_up": (experts, width, hidden),
        "w_down": (experts, hidden, width),
    }
    if has_biases:
        sizes |= {
            "router_bias": (experts,),
            "b_gate": (experts, hidden),
            "b_up": (experts, hidden),
            "b_down": (experts, width),
        }
    return {
        n: rng.standard_normal(s, np.float32) * np.float32(1 if n == "x" else 0.5)
        for n, s in sizes.items()
    }


@pytest.fixture(scope="session")
def dense():
    return dense_moe


@pytest.fixture(scope="session")
def make_arrays():
    return make_moe_arrays


@pytest.fixture(scope="session")
def assert_close():
    def check(actual: Any, expected: Any, eps: float = 5e-6) -> None:
        pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
        for a, e in pairs:
            a, e = (np.asarray(v).astype(np.float64) for v in (a, e))
            scale = max(1.0, np.abs(e).max(initial=0))
            np.testing.assert_allclose(a, e, rtol=0, atol=eps * scale)

    return check
