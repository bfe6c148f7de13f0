"""Losses that keep the experts evenly used and the logits small.

E experts, K chosen by each token, N tokens in all.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.ops.moe_routing.arguments import check_expert_values, checked_logits
from tokumx.ops.moe_routing.scores import wide

ArrayLike = Any
AxisName = None | str | tuple[str, ...]


def load_balance_loss(
    probs: ArrayLike,
    experts: ArrayLike,
    *,
    token_mask: ArrayLike | None = None,
    axis_name: AxisName = None,
) -> jax.Array:
    """E * sum_e f[e] * P[e]: 1 where the experts are evenly used, up to E.

    f[e] is the share of all N * K choices that fall on expert e; it has no
    gradient. P[e] is the mean of probs[..., e] over the tokens. Libraries that
    divide the choices by N alone get K times this loss.

    Args:
      probs: [..., E] floating: Routing.probs.
      experts: [..., K] int32: Routing.experts.
      token_mask: [...] bool; False leaves a token out (padding).
      axis_name: mesh axes of an enclosing shard_map that split the tokens; f
        and P are then those of all devices' tokens, and so is the loss.

    Returns:
      A scalar, f32 (f64 for f64 probs); 0 if there is no token.

    Raises:
      ValueError: arrays that do not belong together.

    Gradients: probs.
    Source: Fedus et al. 2021, arXiv:2101.03961, eqs. 4 to 6.
    """
    probs = wide(checked_logits("load_balance_loss", probs))
    check_expert_values("load_balance_loss", experts, probs.shape[-1])
    experts = jnp.asarray(experts)
    if experts.shape[:-1] != probs.shape[:-1]:
        raise ValueError(
            "load_balance_loss: probs [..., E] and experts [..., K] must have equal "
            f"leading axes; got {probs.shape} and {experts.shape}. Pass both of one "
            "Routing."
        )
    keep = _token_mask("load_balance_loss", token_mask, probs)
    num_experts, k = probs.shape[-1], experts.shape[-1]
    lanes = jnp.arange(num_experts, dtype=experts.dtype)
    counts = jnp.zeros(num_experts, probs.dtype)
    for j in range(k):
        is_choice = (experts[..., j : j + 1] == lanes) & keep[..., None]
        counts = counts + _sum_tokens(is_choice, probs.dtype)
    mass = _sum_tokens(jnp.where(keep[..., None], probs, 0), probs.dtype)  # [E]
    tokens = keep.sum(dtype=probs.dtype)
    counts, mass, tokens = _over_devices((counts, mass, tokens), axis_name)
    tokens = jnp.maximum(tokens, 1)
    return num_experts * jnp.sum((counts / (tokens * k)) * (mass / tokens))


def router_z_loss(
    logits: ArrayLike,
    *,
    token_mask: ArrayLike | None = None,
    axis_name: AxisName = None,
) -> jax.Array:
    """Mean over the tokens of logsumexp(logits) ** 2.

    Args:
      logits: [..., E] floating, before the softmax.
      token_mask: [...] bool; False leaves a token out (padding).
      axis_name: mesh axes of an enclosing shard_map that split the tokens; the
        mean is then that of all devices' tokens.

    Returns:
      A scalar, f32 (f64 for f64 logits); 0 if there is no token. A token whose
      logits are all -inf counts as 0.

    Raises:
      ValueError: arrays that do not belong together.

    Gradients: logits.
    Source: Zoph et al. 2022, arXiv:2202.08906, eq. 5.
    """
    logits = wide(checked_logits("router_z_loss", logits))
    keep = _token_mask("router_z_loss", token_mask, logits)
    counts = keep & ~(logits == -jnp.inf).all(-1)
    # Replaced before, since the gradient of what is left out may be NaN.
    lse = jax.nn.logsumexp(jnp.where(counts[..., None], logits, 0), axis=-1)
    total = jnp.where(counts, lse**2, 0).sum()
    total, tokens = _over_devices((total, keep.sum(dtype=lse.dtype)), axis_name)
    return total / jnp.maximum(tokens, 1)


def _token_mask(name: str, mask: ArrayLike | None, like: jax.Array) -> jax.Array:
    """[...] bool."""
    if mask is None:
        return jnp.ones(like.shape[:-1], jnp.bool_)
    mask = jnp.asarray(mask)
    if mask.shape != like.shape[:-1] or mask.dtype != jnp.bool_:
        raise ValueError(
            f"{name}: token_mask must be bool {list(like.shape[:-1])}; got "
            f"{mask.dtype.name}{list(mask.shape)}. Pass True for each token that "
            "counts."
        )
    return mask


def _sum_tokens(x: jax.Array, dtype: Any) -> jax.Array:
    return x.sum(tuple(range(x.ndim - 1)), dtype=dtype)


def _over_devices(sums: tuple[jax.Array, ...], axis_name: AxisName) -> Any:
    return sums if axis_name is None else lax.psum(sums, axis_name)
