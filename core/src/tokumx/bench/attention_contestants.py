"""Who computes attention: tokumx, the plain form, and the peers.

B batch, T query length, S key length, N query heads, K key heads, G = N // K,
R = T * G rows, H head dim.
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
HEADS_MAJOR = "einsum heads-major"
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


def einsum_attention(arrays: Arrays, **options: Any) -> jax.Array:
    """Attention as a model writes it when it uses no kernel.

    Logits and softmax in f32. The query heads of a group are further rows R of
    one product: copies of the keys would make it many times slower.
    """
    query, key, value = arrays["query"], arrays["key"], arrays["value"]
    rows = _rows(query, key.shape[2])
    logits = jnp.einsum(
        "brkh,bskh->bkrs", rows, key, preferred_element_type=jnp.float32
    )
    weights = _weights(logits, arrays, **options)
    out = jnp.einsum("bkrs,bskh->brkh", weights, value)
    return _queries(out, query.shape)


def heads_major_attention(arrays: Arrays, **options: Any) -> jax.Array:
    """The same, with every operand transposed to heads first.

    XLA's CPU compiler makes one fused kernel of this form in some cases, and
    then it is several times as fast.
    """
    query, key, value = arrays["query"], arrays["key"], arrays["value"]
    rows, keys, values = (
        x.swapaxes(1, 2) for x in (_rows(query, key.shape[2]), key, value)
    )
    logits = jnp.einsum(
        "bkrh,bksh->bkrs", rows, keys, preferred_element_type=jnp.float32
    )
    weights = _weights(logits, arrays, **options)
    out = jnp.einsum("bkrs,bksh->bkrh", weights, values)
    return _queries(out.swapaxes(1, 2), query.shape)


def _rows(query: jax.Array, k: int) -> jax.Array:
    """[B, T, N, H] to [B, R, K, H] with R = T * G; queries follow each other."""
    b, t, n, h = query.shape
    return query.reshape(b, t, k, n // k, h).swapaxes(2, 3).reshape(b, -1, k, h)


def _queries(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of _rows."""
    b, t, n, h = shape
    k = rows.shape[2]
    return rows.reshape(b, t, n // k, k, h).swapaxes(2, 3).reshape(shape)


def _weights(
    logits: jax.Array,
    arrays: Arrays,
    *,
    is_causal: bool,
    local_window_size: tuple[int | None, int | None] | None,
    logits_soft_cap: float | None,
) -> jax.Array:
    """Softmax over the visible keys, [B, K, R, S] in the values' dtype."""
    query, key = arrays["query"], arrays["key"]
    g = query.shape[2] // key.shape[2]
    logits = logits * query.shape[3] ** -0.5
    if logits_soft_cap is not None:
        logits = logits_soft_cap * jnp.tanh(logits / logits_soft_cap)
    r, s = logits.shape[2:]
    distance = jnp.arange(s) - jnp.arange(r)[:, None] // g
    visible = _visible(distance, is_causal, local_window_size)
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    weights = _softmax(logits, arrays.get("sinks"))
    return weights.astype(arrays["value"].dtype)


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


def _softmax(logits: jax.Array, sinks: jax.Array | None) -> jax.Array:
    """Over the last axis of [B, K, R, S]; a sink is one more logit."""
    if sinks is None:
        return jax.nn.softmax(logits)
    b, k, r, _ = logits.shape
    sinks = sinks.reshape(k, -1)  # [K, G]
    sinks = jnp.tile(sinks, (1, r // sinks.shape[1]))[:, :, None]
    sinks = jnp.broadcast_to(sinks, (b, k, r, 1))
    return jax.nn.softmax(jnp.concatenate([logits, sinks], axis=-1))[..., :-1]


def attention_contestants(
    shape: AttentionShape, torch_bf16: bool
) -> Sequence[Contestant]:
    """tokumx first; a peer without an option that the shape needs is absent."""
    ours = InProcess(SUBJECT, lambda a: tokumx_attention(a, shape))
    contestants: list[Contestant] = [
        ours,
        InProcess(EINSUM, lambda a: einsum_attention(a, **shape.options)),
        InProcess(HEADS_MAJOR, lambda a: heads_major_attention(a, **shape.options)),
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
