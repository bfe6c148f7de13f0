"""Checks of the arguments of this folder's functions.

T tokens, D width, E experts, K chosen by each token.
"""

import difflib
import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import ArraySpec
from tokumx.debug import check_values

ROUTE, PERMUTE, UNPERMUTE = "top_k_routing", "moe_permute", "moe_unpermute"
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_SCORES = ("softmax", "sigmoid")
_NORMALIZE = ("before", "after")


def _fail(op: str, rule: str, got: Any, advice: str) -> ValueError:
    return ValueError(f"{op}: {rule}; got {got}. {advice}")


def checked_logits(op: str, logits: Any) -> jax.Array:
    """logits as an array of [..., E]."""
    logits = jnp.asarray(logits)
    if not logits.ndim or logits.dtype.name not in _DTYPES or not logits.shape[-1]:
        raise _fail(
            op,
            f"logits must be [..., E] with E > 0, of {', '.join(_DTYPES)}",
            f"logits={ArraySpec.of(logits)}",
            "Pass one logit for each expert.",
        )
    return logits


def checked_bias(bias: Any, num_experts: int) -> jax.Array | None:
    if bias is None:
        return None
    bias = jnp.asarray(bias)
    if bias.shape != (num_experts,) or not jnp.issubdtype(bias.dtype, jnp.floating):
        raise _fail(
            ROUTE,
            f"correction_bias must be floating [E] = [{num_experts}]",
            f"correction_bias={ArraySpec.of(bias)}",
            "Pass one number for each expert.",
        )
    return bias


def routing_options(num_experts: int, **given: Any) -> dict[str, Any]:
    """The static options, checked."""
    _check_name("score", given["score"], _SCORES)
    _check_name("normalize", given["normalize"], _NORMALIZE)
    if given["normalize"] == "after" and given["score"] != "softmax":
        raise _fail(
            ROUTE,
            "normalize='after' must go with score='softmax'",
            f"score={given['score']!r}",
            "Pass renormalize=True to make the chosen scores sum to 1.",
        )
    k, scale = given["k"], given["scale"]
    if not _is_count(k, num_experts):
        raise _fail(
            ROUTE,
            f"k must be an int from 1 to the number of experts, {num_experts}",
            repr(k),
            "The experts are the last axis of logits.",
        )
    if not isinstance(scale, int | float | np.number):
        raise _fail(
            ROUTE,
            "scale must be a Python number",
            type(scale).__name__,
            "Multiply the weights to vary it.",
        )
    _check_groups(num_experts, k, given["num_groups"], given["top_groups"])
    counts = {n: given[n] for n in ("k", "num_groups", "top_groups")}
    return {
        "score": given["score"],
        "normalize": given["normalize"],
        "renormalize": bool(given["renormalize"]),
        "scale": float(scale),
        **{n: None if x is None else int(x) for n, x in counts.items()},
    }


def _check_name(argument: str, name: Any, names: Sequence[str]) -> None:
    if name in names:
        return
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    raise _fail(
        ROUTE,
        f"{argument} must be among {', '.join(map(repr, names))}",
        repr(name),
        f"Did you mean {close[0]!r}?" if close else "The docstring says what each is.",
    )


def _check_groups(num_experts: int, k: int, groups: Any, top: Any) -> None:
    if groups is None and top is None:
        return
    if groups is None or top is None:
        raise _fail(
            ROUTE,
            "num_groups and top_groups must be given together",
            f"num_groups={groups}, top_groups={top}",
            "Leave out both to choose among all experts.",
        )
    if not _is_count(groups, num_experts) or num_experts % groups:
        raise _fail(
            ROUTE,
            f"num_groups must divide the number of experts, {num_experts}",
            repr(groups),
            "Neighbouring experts form a group, all of one size.",
        )
    if not _is_count(top, groups):
        raise _fail(
            ROUTE,
            f"top_groups must be an int from 1 to num_groups, {groups}",
            repr(top),
            "It is how many groups a token may choose experts from.",
        )
    if top * (num_experts // groups) < k:
        raise _fail(
            ROUTE,
            f"top_groups must hold at least k = {k} experts",
            f"{top} groups of {num_experts // groups}",
            "Raise top_groups, or lower k.",
        )


def _is_count(x: Any, most: int) -> bool:
    is_int = isinstance(x, numbers.Integral) and not isinstance(x, bool)
    return is_int and 1 <= int(x) <= most


def checked_tokens(x: Any, experts: Any) -> tuple[jax.Array, jax.Array]:
    """x [T, D] and experts [T, K] as arrays."""
    x, experts = jnp.asarray(x), jnp.asarray(experts)
    fits = x.ndim == 2 and experts.ndim == 2 and x.shape[0] == experts.shape[0]
    if not fits or x.dtype.name not in _DTYPES or experts.dtype != jnp.int32:
        raise _fail(
            PERMUTE,
            f"x must be [T, D] of {', '.join(_DTYPES)}, and experts int32 [T, K]",
            f"x={ArraySpec.of(x)} experts={ArraySpec.of(experts)}",
            "Merge the leading axes into tokens.",
        )
    return x, experts


def check_num_experts(op: str, num_experts: Any) -> int:
    if not _is_count(num_experts, 2**30):
        raise _fail(
            op,
            "num_experts must be an int > 0",
            repr(num_experts),
            "It is the number of groups that the rows are sorted into.",
        )
    return int(num_experts)


def check_expert_values(op: str, experts: Any, num_experts: int) -> None:
    """Checks the values of numpy arrays, and of all under debug checks."""

    def find_error(values: np.ndarray) -> ValueError | None:
        wrong = values[(values < 0) | (values >= num_experts)]
        if not wrong.size:
            return None
        return _fail(
            op,
            f"experts must be in [0, {num_experts})",
            f"{wrong.flat[0]}",
            "Count all experts of the layer in num_experts.",
        )

    check_values(experts, find_error)


def checked_rows(
    rows: Any, weights: Any, source: Any, target: Any
) -> tuple[jax.Array, jax.Array]:
    """rows [T * K, D] and weights [T, K] as arrays that fit the permutation."""
    rows, weights = jnp.asarray(rows), jnp.asarray(weights)
    fits = (
        rows.ndim == 2
        and rows.dtype.name in _DTYPES
        and rows.shape[:1] == source.shape
        and weights.shape == target.shape
        and jnp.issubdtype(weights.dtype, jnp.floating)
    )
    if not fits:
        t, k = target.shape
        raise _fail(
            UNPERMUTE,
            f"rows must be [T * K, D] = [{source.shape[0]}, D] of "
            f"{', '.join(_DTYPES)}, and weights floating [T, K] = [{t}, {k}]",
            f"rows={ArraySpec.of(rows)} weights={ArraySpec.of(weights)}",
            "Pass what belongs to this permutation.",
        )
    return rows, weights
