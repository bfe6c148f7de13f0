"""Public API of the ragged form of a layer's tokens, and its two OpSpecs.

T tokens, D width, E experts, K chosen by each token. Choice c = t * K + j is
the j-th of token t.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

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
from tokumx.ops.moe_routing import (
    permute_gather,
    permute_reference,
    unpermute_gather,
    unpermute_reference,
)
from tokumx.ops.moe_routing.arguments import (
    PERMUTE,
    UNPERMUTE,
    check_expert_values,
    check_num_experts,
    checked_rows,
    checked_tokens,
)
from tokumx.ops.moe_routing.inputs import (
    make_arrays,
    permute_examples,
    unpermute_examples,
)

ArrayLike = Any


class Permutation(NamedTuple):
    """Where each choice went, and which one each row is.

    Attributes:
      source: [T * K] int32: row r holds token source[r] // K, for its choice
        source[r] % K.
      target: [T, K] int32: the row of each choice.
    """

    source: jax.Array
    target: jax.Array


class Permuted(NamedTuple):
    """Tokens sorted by expert.

    Attributes:
      rows: [T * K, D].
      group_sizes: [E] int32: how many rows each expert has.
      permutation: the way back.
    """

    rows: jax.Array
    group_sizes: jax.Array
    permutation: Permutation


def moe_permute(
    x: ArrayLike,
    experts: ArrayLike,
    num_experts: int,
    *,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> Permuted:
    """One row for each choice of a token, sorted by expert: what ragged_dot takes.

    rows[r] = x[source[r] // K];  source sorts the choices by expert, stably

    Args:
      x: [T, D]; f32, bf16, f16 or f64.
      experts: [T, K] int32 in [0, E); a token may name an expert twice. Values
        are checked where they are numpy arrays, and everywhere under
        tokumx.debug_checks(). Unchecked, a choice out of range belongs to no
        expert: its row lies past sum(group_sizes).
      num_experts: E.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken; None looks it up.

    Returns:
      A Permuted: rows in x.dtype, group_sizes, and the permutation.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: the rows; nothing of size T * E. Gradients: x, summed in f32 (f64
    for f64) over the rows of a token.
    """
    num_experts = check_num_experts(PERMUTE, num_experts)
    check_expert_values(PERMUTE, experts, num_experts)
    x, experts = checked_tokens(x, experts)
    group_sizes, permutation = _sorted_by_expert(experts, num_experts)
    arrays = {"x": x, **permutation._asdict()}
    results = call_op(
        MOE_PERMUTE, arrays, {}, implementation=implementation, config=config
    )
    return Permuted(results["rows"], group_sizes, permutation)


def moe_unpermute(
    rows: ArrayLike,
    permutation: Permutation,
    weights: ArrayLike,
    *,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array:
    """The weighted sum of each token's rows: the way back from moe_permute.

    out[t] = sum_j weights[t, j] * rows[target[t, j]]

    Args:
      rows: [T * K, D]; f32, bf16, f16 or f64.
      permutation: of the moe_permute that the rows come from.
      weights: [T, K] floating; used in f32 (f64 for f64 rows).
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken; None looks it up.

    Returns:
      [T, D] in rows.dtype, accumulated in f32 (f64 for f64), rounded once.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: nothing beside the output. Gradients: rows and weights.
    """
    rows, weights = checked_rows(rows, weights, *permutation)
    arrays = {"rows": rows, "weights": weights, **permutation._asdict()}
    results = call_op(
        MOE_UNPERMUTE, arrays, {}, implementation=implementation, config=config
    )
    return results["out"]


def _sorted_by_expert(
    experts: jax.Array, num_experts: int
) -> tuple[jax.Array, Permutation]:
    """(group_sizes [E], permutation); out of range sorts last, in no group."""
    experts = _replicated(experts)
    choices = experts.reshape(-1)
    is_valid = (choices >= 0) & (choices < num_experts)
    keys = jnp.where(is_valid, choices, num_experts)
    order = lax.iota(jnp.int32, choices.size)
    keys, source = lax.sort((keys, order), num_keys=1, is_stable=True)
    _, target = lax.sort((source, order), num_keys=1)
    bounds = jnp.searchsorted(keys, jnp.arange(num_experts + 1, dtype=jnp.int32))
    group_sizes = jnp.diff(bounds).astype(jnp.int32)
    return group_sizes, Permutation(source, target.reshape(experts.shape))


def _replicated(x: jax.Array) -> jax.Array:
    """x on every device of an Explicit mesh: one sort runs over all tokens."""
    sharding = jax.typeof(x).sharding
    if jax.sharding.AxisType.Explicit not in sharding.mesh.axis_types:
        return x
    return jax.sharding.reshard(x, jax.sharding.PartitionSpec())


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Expected order of speed; measured on a CPU, see README.md."""
    del call, device
    return [
        ("xla_gather", "gathers forward and backward"),
        ("xla", "its backward scatters"),
    ]


MOE_PERMUTE = OpSpec(
    name=PERMUTE,
    axes={"x": "t d", "source": "r", "target": "t k", "rows": "r d"},
    outputs=("rows",),
    graded_outputs=("rows",),
    sharded_axes={"d": "d"},
    differentiable=("x",),
    implementations=(
        Implementation.of_module("xla_gather", permute_gather),
        Implementation.of_module("xla", permute_reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=permute_examples,
)

MOE_UNPERMUTE = OpSpec(
    name=UNPERMUTE,
    axes={
        "rows": "r d",
        "weights": "t k",
        "source": "r",
        "target": "t k",
        "out": "t d",
    },
    outputs=("out",),
    graded_outputs=("out",),
    sharded_axes={"d": "d"},
    differentiable=("rows", "weights"),
    implementations=(
        Implementation.of_module("xla_gather", unpermute_gather),
        Implementation.of_module("xla", unpermute_reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=unpermute_examples,
)
