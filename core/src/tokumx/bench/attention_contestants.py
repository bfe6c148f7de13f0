"""Who computes attention: tokumx, the plain form, and the peers.

B batch, T query length, S key length, N query heads, K key heads, G = N // K,
H head dim.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.bench.case import SUBJECT, Absent, Arrays, Contestant, InProcess, InTorch
from tokumx.ops.attention import dot_product_attention
from tokumx.ops.attention.shapes import AttentionShape

EINSUM, JAX_NN, TOKAMAX, TORCH = "einsum", "jax.nn", "tokamax", "torch"
FLOAT32_SUBJECT = f"{SUBJECT} f32"
_SLOW_TORCH_BF16 = (
    "bf16 is left out: torch's bf16 products are many times slower than its f32 "
    "ones on CPUs without AVX-512 BF16 or AMX. Pass --torch-bf16 to include it"
)


def tokumx_attention(
    arrays: Arrays, shape: AttentionShape, implementation: str | None = None
) -> jax.Array:
    """The public function, without the log-sum-exp."""
    out = dot_product_attention(
        **arrays, **shape.options, implementation=implementation
    )
    assert isinstance(out, jax.Array), "return_residual was not asked for"
    return out


def einsum_attention(
    arrays: Arrays,
    *,
    is_causal: bool,
    local_window_size: tuple[int | None, int | None] | None,
    logits_soft_cap: float | None,
) -> jax.Array:
    """Attention as a model writes it when it uses no kernel.

    Logits and softmax in f32. The query heads of a group become more rows of
    one product: on CPUs XLA is up to twice as slow with one more batch axis,
    and ten times with copies of the keys.
    """
    query, key, value = arrays["query"], arrays["key"], arrays["value"]
    b, t, n, h = query.shape
    s, k = key.shape[1:3]
    rows = query.reshape(b, t, k, n // k, h).transpose(0, 2, 3, 1, 4)
    rows = rows.reshape(b, k, -1, h)  # [B, K, G * T, H]
    logits = jnp.einsum(
        "bkrh,bskh->bkrs", rows, key, preferred_element_type=jnp.float32
    )
    logits = logits * h**-0.5
    if logits_soft_cap is not None:
        logits = logits_soft_cap * jnp.tanh(logits / logits_soft_cap)
    distance = jnp.arange(s) - jnp.tile(jnp.arange(t), n // k)[:, None]
    visible = _visible(distance, is_causal, local_window_size)  # [G * T, S]
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    weights = _softmax(logits, arrays.get("sinks"), t).astype(value.dtype)
    out = jnp.einsum("bkrs,bskh->bkrh", weights, value)
    out = out.reshape(b, k, n // k, t, h).transpose(0, 3, 1, 2, 4)
    return out.reshape(b, t, n, h)


def _visible(
    distance: jax.Array, is_causal: bool, window: tuple[int | None, int | None] | None
) -> jax.Array | None:
    """From key minus query position; None if every query sees every key."""
    left, right = window or (None, None)
    right = 0 if is_causal else right
    visible = None if right is None else distance <= right
    if left is None:
        return visible
    near = distance >= -left
    return near if visible is None else visible & near


def _softmax(logits: jax.Array, sinks: jax.Array | None, t: int) -> jax.Array:
    """Over the last axis of [B, K, G * T, S]; a sink is one more logit."""
    if sinks is None:
        return jax.nn.softmax(logits)
    b, k = logits.shape[:2]
    sink = jnp.repeat(sinks.reshape(k, -1), t, axis=1)[:, :, None]  # [K, G * T, 1]
    sink = jnp.broadcast_to(sink, (b, *sink.shape))
    return jax.nn.softmax(jnp.concatenate([logits, sink], axis=-1))[..., :-1]


def attention_contestants(
    shape: AttentionShape, torch_bf16: bool
) -> Sequence[Contestant]:
    """tokumx first; a peer without an option that the shape needs is absent."""
    ours = InProcess(SUBJECT, lambda a: tokumx_attention(a, shape))
    contestants: list[Contestant] = [
        ours,
        InProcess(EINSUM, lambda a: einsum_attention(a, **shape.options)),
        _jax_nn(shape),
        _tokamax(shape),
        _torch(shape, torch_bf16),
    ]
    if shape.dtype != "float32":
        contestants.append(InProcess(FLOAT32_SUBJECT, ours.function, "float32"))
    return contestants


def _jax_nn(shape: AttentionShape) -> Contestant:
    lacking = _lacking(shape, soft_cap=True, sinks=True)
    if lacking:
        return Absent(JAX_NN, lacking)
    options = {n: shape.options[n] for n in ("is_causal", "local_window_size")}
    return InProcess(JAX_NN, lambda a: jax.nn.dot_product_attention(**a, **options))


def _tokamax(shape: AttentionShape) -> Contestant:
    lacking = _lacking(shape, soft_cap=False, sinks=True)
    if lacking:
        return Absent(TOKAMAX, lacking)
    if importlib.util.find_spec("tokamax") is None:
        return Absent(
            TOKAMAX, "not installed; it needs Python 3.12: pip install tokamax"
        )
    return InProcess(TOKAMAX, lambda a: _call_tokamax(a, shape.options))


def _call_tokamax(arrays: Arrays, options: dict[str, Any]) -> jax.Array:
    import tokamax

    return tokamax.dot_product_attention(
        **arrays, **options, implementation="xla_chunked"
    )


def _torch(shape: AttentionShape, torch_bf16: bool) -> Contestant:
    lacking = _lacking(shape, soft_cap=True, sinks=True)
    if lacking:
        return Absent(TORCH, lacking)
    if shape.dtype == "bfloat16" and not torch_bf16:
        return Absent(TORCH, _SLOW_TORCH_BF16)
    options = {"is_causal": shape.is_causal, "window": shape.window}
    return InTorch(TORCH, "attention", options)


def _lacking(shape: AttentionShape, *, soft_cap: bool, sinks: bool) -> str:
    """What the shape needs and a peer has not; the flags say what that peer lacks."""
    if soft_cap and shape.soft_cap is not None:
        return "has no soft cap"
    if sinks and shape.has_sinks:
        return "has no sinks"
    return ""
