"""A mixture-of-experts layer: router, experts, weighted sum.

T tokens, D width, F hidden width, E experts, K chosen by each token.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from tokumx.contract import Config, Configs
from tokumx.dispatch import Preference
from tokumx.dispatch.partition import like_primal
from tokumx.layers.expert_exchange import EXCHANGES, chosen_exchange
from tokumx.layers.experts import Experts
from tokumx.layers.moe_arguments import (
    check_activation,
    check_exchange,
    check_router,
    checked_experts,
    checked_input,
)
from tokumx.ops.moe_routing import (
    Routing,
    load_balance_loss,
    moe_permute,
    moe_unpermute,
    router_z_loss,
    top_k_routing,
)

ArrayLike = Any


class MoeAux(NamedTuple):
    """What a training loss and its logs need of a layer.

    Attributes:
      load_balance_loss, router_z_loss: scalars, of all tokens that the experts
        see: under axis_name of all devices' tokens.
      routing: of this device's tokens, [..., K] and [..., E].
      logits: of the router, [..., E], f32 (f64 for f64).
    """

    load_balance_loss: jax.Array
    router_z_loss: jax.Array
    routing: Routing
    logits: jax.Array


def moe(
    x: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    w_down: ArrayLike,
    *,
    k: int,
    router_weight: ArrayLike | None = None,
    router_bias: ArrayLike | None = None,
    router_logits: ArrayLike | None = None,
    b_gate: ArrayLike | None = None,
    b_up: ArrayLike | None = None,
    b_down: ArrayLike | None = None,
    activation: str = "silu",
    swiglu_limit: float = 7.0,
    swiglu_alpha: float = 1.702,
    score: str = "softmax",
    normalize: str = "before",
    correction_bias: ArrayLike | None = None,
    num_groups: int | None = None,
    top_groups: int | None = None,
    renormalize: bool = False,
    scale: float = 1.0,
    axis_name: str | None = None,
    exchange: str | None = None,
    return_aux: bool = False,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array | tuple[jax.Array, MoeAux]:
    """Each token's K best experts, each a gated unit, summed with their weights.

    logits = x @ router_weight + router_bias
    weights, experts = top_k_routing(logits, k, ...)
    h[e] = activation(x @ w_gate[e] + b_gate[e]) * (x @ w_up[e] + b_up[e])
    out[t] = sum_j weights[t, j] * (h[e] @ w_down[e] + b_down[e]),  e = experts[t, j]

    No token is dropped. A shared expert is the caller's: a plain gated unit,
    added to the result.

    Args:
      x: [..., D]; f32, bf16, f16 or f64.
      w_gate, w_up: [E, D, F], in x.dtype.
      w_down: [E, F, D], in x.dtype.
      k: experts of a token.
      router_weight: [D, E] floating; the product is computed in f32.
      router_bias: [E] floating, added to the product.
      router_logits: [..., E] floating, in place of router_weight.
      b_gate, b_up: [E, F] floating. b_down: [E, D] floating.
      activation: of the gate: "silu", "gelu", "gelu_tanh", "relu", "sigmoid";
        or "swiglu_oai", the gated unit of gpt-oss: with gate <= swiglu_limit
        and |up| <= swiglu_limit, (up + 1) * gate * sigmoid(swiglu_alpha * gate).
      score, normalize, correction_bias, num_groups, top_groups, renormalize,
        scale: see top_k_routing. Mixtral and Qwen3-MoE: renormalize=True;
        gpt-oss: normalize="after"; DeepSeek-V3: score="sigmoid",
        renormalize=True, scale=2.5, 8 groups, top 4, and a correction_bias.
      axis_name: axis of an enclosing shard_map (or vmap) that splits both the
        tokens and the experts: device i holds experts i * E / P to
        (i + 1) * E / P - 1 of E, in the first axis of w_* and b_*, and tokens
        of its own. Router arrays are whole on each device.
      exchange: how tokens reach other devices' experts. "ragged_all_to_all"
        sends each row where it is needed; "all_gather" sends all tokens to all
        devices, and sums the results. None takes the former where the backend
        has it: not on a CPU.
      return_aux: also return a MoeAux.
      implementation, config: for ragged_dot; see there.

    Returns:
      [..., D] in x.dtype. Results of the experts are rounded to it, and summed
      in f32 (f64 for f64). With return_aux also a MoeAux.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: rows [T * K, D] and three of [T * K, F]; nothing of size T * E * D.
    With "all_gather" T counts all devices' tokens; with "ragged_all_to_all" the
    rows have room for all of them too, since all may choose one device.
    Gradients: all arrays but correction_bias; the choice is held fixed.
    Source: Shazeer et al. 2017, arXiv:1701.06538; no dropping: MegaBlocks,
    Gale et al. 2022, arXiv:2211.15841.
    """
    check_activation(activation)
    check_exchange(exchange, EXCHANGES)
    x = checked_input(x)
    weights = checked_experts(
        x, w_gate, w_up, w_down, {"b_gate": b_gate, "b_up": b_up, "b_down": b_down}
    )
    experts = Experts(
        weights, activation, swiglu_limit, swiglu_alpha, implementation, config
    )
    logits = _router_logits(x, router_weight, router_bias, router_logits)
    check_router(x, logits, experts.count, axis_name)
    routing = top_k_routing(
        logits,
        k,
        score=score,
        normalize=normalize,
        correction_bias=correction_bias,
        num_groups=num_groups,
        top_groups=top_groups,
        renormalize=renormalize,
        scale=scale,
    )
    tokens, chosen, by_choice = (
        _rows(a) for a in (x, routing.experts, routing.weights)
    )
    if axis_name is None:
        permuted = moe_permute(tokens, chosen, experts.count)
        rows = experts(permuted.rows, permuted.group_sizes)
        out = moe_unpermute(rows, permuted.permutation, by_choice)
    else:
        run = chosen_exchange(exchange)
        out = run(tokens, chosen, by_choice, experts, axis_name)
    out = like_primal(out.reshape(x.shape), x)
    return (out, _aux(routing, logits, axis_name)) if return_aux else out


def _router_logits(
    x: jax.Array,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    logits: ArrayLike | None,
) -> jax.Array:
    if (weight is None) == (logits is None) or (bias is not None and weight is None):
        given = {"router_weight": weight, "router_bias": bias, "router_logits": logits}
        names = ", ".join(n for n, a in given.items() if a is not None) or "none"
        raise ValueError(
            "moe: router_weight, with or without router_bias, or router_logits must "
            f"be given; got {names}. Pass router_logits where the router is your own."
        )
    if weight is None:
        return jnp.asarray(logits)
    weight = jnp.asarray(weight)
    if weight.ndim != 2 or weight.shape[0] != x.shape[-1]:
        raise ValueError(
            f"moe: router_weight must be [D, E] with D = {x.shape[-1]}; got "
            f"{list(weight.shape)}. Transpose a weight that is [E, D]."
        )
    dtype = jnp.promote_types(jnp.promote_types(x.dtype, weight.dtype), jnp.float32)
    product = jnp.einsum("...d,de->...e", x.astype(dtype), weight.astype(dtype))
    return product if bias is None else product + jnp.asarray(bias).astype(dtype)


def _rows(x: jax.Array) -> jax.Array:
    """[..., N] -> [T, N], whole on each device of an Explicit mesh: tokens are
    sorted all together, and two split axes do not merge."""
    sharding = jax.typeof(x).sharding
    if AxisType.Explicit in sharding.mesh.axis_types:
        leading = [None] * (x.ndim - 1)
        x = jax.sharding.reshard(x, PartitionSpec(*leading, sharding.spec[-1]))
    return x.reshape(-1, x.shape[-1])


def _aux(routing: Routing, logits: jax.Array, axis_name: str | None) -> MoeAux:
    return MoeAux(
        load_balance_loss(routing.probs, routing.experts, axis_name=axis_name),
        router_z_loss(logits, axis_name=axis_name),
        routing,
        logits,
    )
