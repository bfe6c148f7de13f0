"""Who computes a mixture-of-experts layer: tokumx, and the plain forms.

T tokens, D width, F hidden width, E experts, K chosen by each token.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.bench.case import (
    SUBJECT,
    Absent,
    Arrays,
    Contestant,
    InProcess,
    InTorch,
)
from tokumx.layers import moe

LAX, DENSE, TORCH = "lax.ragged_dot", "dense", "torch"
REFERENCE = "xla"
_SLOW_TORCH_BF16 = "bf16 is emulated on a CPU without AVX-512: minutes a case"


def tokumx_moe(arrays: Arrays, k: int, implementation: str | None = None) -> jax.Array:
    """The public function, without the losses."""
    given: dict[str, Any] = dict(arrays)
    out = moe(**given, k=k, renormalize=True, implementation=implementation)
    assert isinstance(out, jax.Array), "return_aux was not asked for"
    return out


def lax_moe(arrays: Arrays, k: int) -> jax.Array:
    """A layer as a model writes it when it uses no kernel."""
    x = arrays["x"]
    weights, experts = _route(arrays, k)
    choices = experts.reshape(-1)
    order = jnp.argsort(choices)
    sizes = jnp.bincount(choices, length=arrays["w_gate"].shape[0]).astype(jnp.int32)
    rows = x[order // k]  # [T * K, D]
    gate = lax.ragged_dot(rows, arrays["w_gate"], sizes)
    up = lax.ragged_dot(rows, arrays["w_up"], sizes)
    rows = lax.ragged_dot(jax.nn.silu(gate) * up, arrays["w_down"], sizes)
    rows = rows[jnp.argsort(order)].reshape(*experts.shape, -1)  # [T, K, D]
    return jnp.einsum("tk,tkd->td", weights, rows).astype(x.dtype)


def dense_moe(arrays: Arrays, k: int) -> jax.Array:
    """Every token through every expert, most of them with the weight 0."""
    x, w_gate = arrays["x"], arrays["w_gate"]
    weights, experts = _route(arrays, k)
    one_hot = jax.nn.one_hot(experts, w_gate.shape[0], dtype=weights.dtype)
    share = jnp.einsum("tk,tke->te", weights, one_hot)
    gate = jnp.einsum("td,edf->etf", x, w_gate)
    up = jnp.einsum("td,edf->etf", x, arrays["w_up"])
    hidden = jax.nn.silu(gate) * up
    rows = jnp.einsum("etf,efd->etd", hidden, arrays["w_down"])
    return jnp.einsum("te,etd->td", share, rows).astype(x.dtype)


def _route(arrays: Arrays, k: int) -> tuple[jax.Array, jax.Array]:
    """Weights [T, K] f32 that sum to 1, and experts."""
    x, weight = arrays["x"], arrays["router_weight"]
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    logits = x.astype(dtype) @ weight.astype(dtype)
    weights, experts = lax.top_k(jax.nn.softmax(logits), k)
    return weights / weights.sum(-1, keepdims=True), experts


def moe_contestants(k: int, dtype: str) -> Sequence[Contestant]:
    is_bf16 = dtype == "bfloat16"
    return (
        InProcess(SUBJECT, lambda a: tokumx_moe(a, k)),
        InProcess(LAX, lambda a: lax_moe(a, k)),
        InProcess(DENSE, lambda a: dense_moe(a, k)),
        InProcess(REFERENCE, lambda a: tokumx_moe(a, k, "xla")),
        Absent(TORCH, _SLOW_TORCH_BF16) if is_bf16 else InTorch(TORCH, "moe", {"k": k}),
    )
