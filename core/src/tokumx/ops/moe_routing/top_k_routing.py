"""Public API of routing, and its OpSpec.

E experts, K chosen by each token.
"""

import math
from typing import Any, NamedTuple

import jax

from tokumx.contract import (
    CallSpec,
    Config,
    Configs,
    DeviceSpec,
    Implementation,
    OpSpec,
    Ranking,
)
from tokumx.dispatch import Preference, call_op
from tokumx.ops.moe_routing import reference, xla_rounds
from tokumx.ops.moe_routing.arguments import (
    ROUTE,
    checked_bias,
    checked_logits,
    routing_options,
)
from tokumx.ops.moe_routing.inputs import make_arrays, routing_examples

ArrayLike = Any


class Routing(NamedTuple):
    """Which experts each token goes to.

    Attributes:
      weights: [..., K] f32 (f64 for f64 logits), in the order of `experts`.
      experts: [..., K] int32, the best first.
      probs: [..., E], in the dtype of weights: the scores of all experts over
        their sum; what load_balance_loss takes.
    """

    weights: jax.Array
    experts: jax.Array
    probs: jax.Array


def top_k_routing(
    logits: ArrayLike,
    k: int,
    *,
    score: str = "softmax",
    normalize: str = "before",
    correction_bias: ArrayLike | None = None,
    num_groups: int | None = None,
    top_groups: int | None = None,
    renormalize: bool = False,
    scale: float = 1.0,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> Routing:
    """The K best experts of each token, and their weights.

    s[e] = softmax(logits)[e] or sigmoid(logits[e])
    experts = the k experts e of largest s[e] + correction_bias[e]
    weights[j] = scale * s[experts[j]]

    Of experts with equal values the one of lower index comes first; so do
    groups.

    Args:
      logits: [..., E]; f32, bf16, f16 or f64.
      k: experts of a token, at most E.
      score: "softmax" over the experts, or "sigmoid" of each.
      normalize: with softmax, "before" the choice, over all experts, or
        "after" it, over the chosen ones: gpt-oss. Mixtral and Qwen3-MoE
        renormalize, which gives the same weights as "after".
      correction_bias: [E] floating, added to the scores for the choice only.
        Its gradient is zero.
      num_groups, top_groups: the experts lie in num_groups groups of
        neighbours, and a token chooses only from the top_groups groups whose
        two best values have the largest sum.
      renormalize: divide the weights of a token by their sum, before scale.
      scale: multiplies the weights.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken; None looks it up.

    Returns:
      A Routing. A logit of -inf gives an expert the weight 0, and it is chosen
      only where fewer than k others are left; a token whose logits are all
      -inf gets weights and probs of 0, and zero gradients. A NaN is never
      hidden: its expert is chosen first, and the weights that depend on it are
      NaN, in that row only.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: probs are kept for the backward. Gradients: logits, through weights
    and probs, the choice held fixed.
    Source: Shazeer et al. 2017, arXiv:1701.06538; groups and bias: DeepSeek-V3,
    arXiv:2412.19437, eqs. 12 to 16.
    """
    logits = checked_logits(ROUTE, logits)
    num_experts = logits.shape[-1]
    options = routing_options(
        num_experts,
        k=k,
        score=score,
        normalize=normalize,
        num_groups=num_groups,
        top_groups=top_groups,
        renormalize=renormalize,
        scale=scale,
    )
    arrays = {
        "logits": logits,
        "correction_bias": checked_bias(correction_bias, num_experts),
    }
    results = call_op(
        TOP_K_ROUTING, arrays, options, implementation=implementation, config=config
    )
    return Routing(results["weights"], results["experts"], results["probs"])


_MOST_ROUNDS = 8
_MANY_LOGITS = 32768


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Expected order of speed; measured on a CPU, see README.md."""
    rounds = ("xla_rounds", "a few vectorised maxima")
    plain = ("xla", "one top_k")
    logits = call["logits"]
    if device.platform != "cpu" or not logits.is_static:
        return [plain, rounds]
    count = math.prod(logits.size(a) for a in range(logits.ndim))
    if count >= _MANY_LOGITS and call.option("k") <= _MOST_ROUNDS:
        return [rounds, plain]
    return [plain, rounds]


TOP_K_ROUTING = OpSpec(
    name=ROUTE,
    axes={
        "logits": "... e",
        "correction_bias": "e",
        "weights": "... k",
        "experts": "... k",
        "probs": "... e",
    },
    outputs=("weights", "experts", "probs"),
    graded_outputs=("weights", "experts", "probs"),
    sharded_axes={"...": "..."},
    differentiable=("logits", "correction_bias"),
    implementations=(
        Implementation.of_module("xla_rounds", xla_rounds),
        Implementation.of_module("xla", reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=routing_examples,
)
