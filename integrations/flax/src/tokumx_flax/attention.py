"""tokumx's attention behind the signatures of Flax's.

B batch dimensions (any number), T query length, S key length, N query heads,
K key heads, H head dim, D value dim.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.nnx.nn.dtypes import promote_dtype as _flax_promote_dtype

import tokumx

ArrayLike = Any
NAME = "tokumx_flax.dot_product_attention"


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: nnx.Module | linen.Module | None = None,
    *,
    promote_dtype: Callable[..., Any] = _flax_promote_dtype,
    is_causal: bool = False,
    force_fp32_for_softmax: bool | None = None,
    einsum_dot_general: Callable[..., jax.Array] | None = None,
    qk_attn_weights_einsum: Callable[..., jax.Array] | None = None,
    attn_weights_value_einsum: Callable[..., jax.Array] | None = None,
    implementation: str | Sequence[str] | None = None,
) -> jax.Array:
    """Softmax attention, as `attention_fn` of Flax's attention modules.

    Takes the place of nnx.dot_product_attention and of
    linen.dot_product_attention, whose arguments it has: all of those that
    both share in their order, the others by name.

    Flax's own function runs instead, so that its meaning is kept to the bit,
    when the call asks for what tokumx does not do:

      module given              the attention weights are sown, so they must exist
      broadcast_dropout=True    with dropout on: Flax draws one pattern for all
                                of batch and heads
      precision not default     Flax's products take it
      einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum
      dropout_rng missing, or dropout_rate outside [0, 1): Flax's error

    It is linen's for a linen module or a call with one of linen's own
    arguments, which linen's modules always pass, else nnx's.

    Differs from Flax's function:
      - A query that sees no key gives zeros; Flax averages all values.
      - is_causal is dropped for a query of length 1: it is the newest token
        and sees all of a cache. Flax would let it see key 0 only. Which slots
        of the cache are filled is for `mask` to say, as in Flax's modules.
      - Dropout with broadcast_dropout=False draws other bits than Flax, from
        the same distribution: independent for every weight.
      - The logits and the softmax are f32 (f64 for f64) in every dtype.

    Args:
      query: [*B, T, N, H]; after promotion f32, bf16, f16 or f64.
      key: [*B, S, K, H]. N must be a multiple of K.
      value: [*B, S, K, D].
      bias: broadcastable to [*B, N, T, S]; added to the logits. Has a gradient.
      mask: of any dtype, broadcastable to [*B, N, T, S]; where it is 0 or False
        the query does not see the key. Never ignored.
      broadcast_dropout, dropout_rng, dropout_rate, deterministic: as in Flax.
      dtype: what query, key and value are cast to; None infers it from them.
      precision: see above.
      module: see above.
      promote_dtype: casts (query, key, value), given dtype=dtype.
      is_causal: key index <= query index.
      force_fp32_for_softmax: the result is f32, as in linen, which casts no
        weight back. The softmax is f32 either way.
      implementation: a name, names in order of preference, or None for the
        fastest supported one; for the calls that tokumx runs.

    Returns:
      [*B, T, N, D] in the promoted dtype.

    Raises:
      ValueError: shapes or dtypes do not fit together.
      tokumx.UnsupportedError: a named implementation cannot run this call here.

    Gradients: query, key, value and bias.
    """
    is_causal = is_causal and query.shape[-3] != 1
    arrays = (query, key, value, bias, mask)
    dropout = _Dropout(broadcast_dropout, dropout_rng, dropout_rate, deterministic)
    einsums = {
        "einsum_dot_general": einsum_dot_general,
        "qk_attn_weights_einsum": qk_attn_weights_einsum,
        "attn_weights_value_einsum": attn_weights_value_einsum,
    }
    if _needs_framework(dropout, precision, module, einsums):
        options = {"dtype": dtype, "precision": precision, "module": module}
        options |= dropout._asdict()
        is_linen = force_fp32_for_softmax is not None or _any_given(einsums)
        if is_linen or isinstance(module, linen.Module):
            options |= {**einsums, "force_fp32_for_softmax": force_fp32_for_softmax}
            return _linen_attention(*arrays, is_causal, options)
        options |= {"promote_dtype": promote_dtype, "is_causal": is_causal}
        return nnx.dot_product_attention(*arrays, **options)
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    options = {"is_causal": is_causal, "implementation": implementation}
    if dropout.is_on:
        options |= {"dropout_rate": dropout_rate, "dropout_key": dropout_rng}
    out = _tokumx_attention(query, key, value, bias, mask, **options)
    if force_fp32_for_softmax:
        out = out.astype(jnp.promote_types(out.dtype, jnp.float32))
    return out


class _Dropout(NamedTuple):
    """Flax's dropout arguments, under its names."""

    broadcast_dropout: bool
    dropout_rng: jax.Array | None
    dropout_rate: float
    deterministic: bool

    @property
    def is_on(self) -> bool:
        return self.dropout_rate > 0 and not self.deterministic


def _needs_framework(
    dropout: _Dropout, precision: Any, module: Any, einsums: dict[str, Any]
) -> bool:
    """Whether Flax's own function has to run; the cases are listed above."""
    if module is not None or _any_given(einsums) or not is_default(precision):
        return True
    if not 0 <= dropout.dropout_rate < 1:
        return True
    return dropout.is_on and (dropout.broadcast_dropout or dropout.dropout_rng is None)


def is_default(precision: Any) -> bool:
    """No precision is asked for, in any of the forms jax accepts."""
    if isinstance(precision, tuple):
        return all(map(is_default, precision))
    return precision in (None, "default", jax.lax.Precision.DEFAULT)


def _any_given(options: dict[str, Any]) -> bool:
    return any(x is not None for x in options.values())


def _linen_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    is_causal: bool,
    options: dict[str, Any],
) -> jax.Array:
    """linen's function, which has no is_causal: it becomes part of the mask."""
    if is_causal:
        causal = jnp.tri(query.shape[-3], key.shape[-3], dtype=bool)
        mask = causal if mask is None else jnp.asarray(mask, bool) & causal
    return linen.dot_product_attention(query, key, value, bias, mask, **options)


def _tokumx_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    **options: Any,
) -> jax.Array:
    """tokumx's function, for any number of batch dimensions."""
    batch = query.shape[:-3]
    if not batch == key.shape[:-3] == value.shape[:-3]:
        q, k, v = map(tokumx.ArraySpec.of, (query, key, value))
        raise ValueError(
            f"{NAME}: query, key and value must be [*batch, length, heads, dim] "
            f"with equal batch dimensions; got query={q} key={k} value={v}. "
            "Broadcast them first."
        )
    logits = (*batch, query.shape[-2], query.shape[-3], key.shape[-3])
    out = tokumx.dot_product_attention(
        _merge_batch(query),
        _merge_batch(key),
        _merge_batch(value),
        None if bias is None else _bias(jnp.asarray(bias), logits, query.dtype),
        None if mask is None else _like_logits("mask", jnp.asarray(mask, bool), logits),
        **options,
    )
    assert isinstance(out, jax.Array), "no residual is asked for"
    return out.reshape(*batch, *out.shape[1:])


def _merge_batch(x: jax.Array) -> jax.Array:
    *batch, rows, columns, depth = x.shape
    return x.reshape(math.prod(batch), rows, columns, depth)


def _bias(bias: jax.Array, logits: tuple[int, ...], dtype: Any) -> jax.Array:
    if not jnp.issubdtype(bias.dtype, jnp.floating):
        bias = bias.astype(dtype)
    return _like_logits("bias", bias, logits)


def _like_logits(name: str, x: jax.Array, full: tuple[int, ...]) -> jax.Array:
    """[..., N or 1, T or 1, S or 1] -> [B or 1, N or 1, T or 1, S or 1]."""
    missing = len(full) - x.ndim
    shape = (1,) * missing + x.shape
    if missing < 0 or any(d not in (1, f) for d, f in zip(shape, full, strict=True)):
        sizes = ", ".join(map(str, full))
        raise ValueError(
            f"{NAME}: {name} must broadcast to [*batch, N, T, S] = [{sizes}]; got "
            f"{name}={tokumx.ArraySpec.of(x)}. Give every axis its full size or 1."
        )
    if any(d != 1 for d in shape[:-3]):
        shape = (*full[:-3], *shape[-3:])
    return _merge_batch(jnp.broadcast_to(x, shape))
