"""Public API of ragged_dot and its OpSpec.

M rows, K and N widths, G groups here, E groups of all devices.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tokumx.contract import (
    CallSpec,
    Config,
    Configs,
    DeviceSpec,
    Implementation,
    OpSpec,
    Ranking,
)
from tokumx.contract.call_spec import OptionValue
from tokumx.dispatch import Preference, call_op
from tokumx.ops.ragged_dot import (
    cpu_native,
    quantized_blocked,
    quantized_reference,
    reference,
    xla_blocked,
)
from tokumx.ops.ragged_dot.arguments import (
    Checked,
    as_one_problem,
    quantized,
    quantized_arrays,
)
from tokumx.ops.ragged_dot.inputs import (
    dot_examples,
    make_arrays,
    quantized_examples,
)

ArrayLike = Any


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    group_offset: ArrayLike | int | None = None,
    preferred_element_type: Any = None,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array:
    """Multiplies each row by the matrix of its group; jax.lax.ragged_dot and more.

    out[m] = lhs[m] @ rhs[g] + bias[g]  for each row m of group g
    out[m] = 0                          for each row m of no group here

    Group g has the group_sizes[g] rows after those of the groups before it.

    Args:
      lhs: [M, K], rows sorted by group; f32, bf16, f16 or f64.
      rhs: [G, K, N], in lhs.dtype; or a QArray [G, K, N] (tokumx.quantize(w, axis=1),
        or Qwix's), whose scales are for a group, a column, or rows of a column.
      group_sizes: [G] integer, >= 0, with a sum of at most M. Values are
        checked where they are numpy arrays, and everywhere under
        tokumx.debug_checks().
      bias: [G, N] floating; used in f32 (f64 for f64).
      group_offset: integer [], for experts split over devices: group_sizes is
        then [E], with the groups of all devices, and rhs[g] belongs to group
        group_offset + g. Rows of groups before group_offset, and of groups from
        group_offset + G on, give zeros, and have zero gradients. A local group
        beyond the E has no rows.
      preferred_element_type: floating dtype of the result; None means lhs.dtype.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken, or Configs for forward and
        backward apart; None looks it up.

    Returns:
      [M, N], accumulated in f32 (f64 for f64), rounded once.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: `cpu_native` holds a block of a matrix for each thread, `xla_blocked`
    one group's matrix and a block of rows; nothing of size G * M. Gradients: lhs,
    rhs (constant if quantized) and bias; first order. Rows of no group get zero
    gradients whatever they hold, and so does an empty group. Devices may split G, K
    and N; over G and K the results are summed.
    Source: Gale et al. 2022, arXiv:2211.15841 (as grouped product).
    """
    weights = quantized(rhs)
    if weights is not None:
        rhs = jax.ShapeDtypeStruct(weights.shape, jnp.asarray(lhs).dtype)
    checked = Checked(
        "ragged_dot", lhs, rhs, "lhs must be [M, K] and rhs [G, K, N]", rank=3
    )
    checked.check_same("K", 1, 1)
    sizes = checked.group_sizes(group_sizes)
    count = checked.rhs.shape[0]
    arrays = {
        "lhs": checked.lhs,
        "group_sizes": sizes,
        "group_ids": checked.group_ids(sizes, group_offset, count),
        **checked.bias(bias),
    }
    options: dict[str, OptionValue]
    options = {"out_dtype": checked.out_dtype(preferred_element_type)}
    if weights is None:
        arrays["rhs"] = jnp.asarray(rhs)
    else:
        arrays |= quantized_arrays(weights, checked.lhs)
        is_packed = weights.packed_axis is not None
        options |= {"qtype": weights.qtype, "is_packed": is_packed}
    results = call_op(
        RAGGED_DOT if weights is None else RAGGED_DOT_QUANTIZED,
        as_one_problem(arrays),
        options,
        implementation=implementation,
        config=config,
    )
    return results["out"][0]


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Expected order of speed; measured on a CPU, see README.md."""
    del call, device
    return [
        ("cpu_native", "packs each matrix once, and reads it once for a few rows"),
        ("xla_blocked", "each row meets its own group's matrix only"),
        ("xla", "every group's product for all rows"),
    ]


def _rank_quantized(call: CallSpec, device: DeviceSpec) -> Ranking:
    """As ragged_dot."""
    del call, device
    return [
        ("xla_blocked", "brings back the matrices of groups that have rows, in turn"),
        ("xla", "every group's product for all rows"),
    ]


_AXES = {
    "lhs": "b m k",
    "group_sizes": "b e",
    "group_ids": "b g",
    "bias": "b g n",
    "bias_owner": "b k",
    "out": "b m n",
}

RAGGED_DOT = OpSpec(
    name="ragged_dot",
    axes=_AXES | {"rhs": "b g k n"},
    outputs=("out",),
    graded_outputs=("out",),
    sharded_axes={"g": "g", "n": "n", "k": "k"},
    differentiable=("lhs", "rhs", "bias"),
    implementations=(
        Implementation.of_module("cpu_native", cpu_native),
        Implementation.of_module("xla_blocked", xla_blocked),
        Implementation.of_module("xla", reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=dot_examples,
)

# P rows of bytes, S scales along K, W of them along N.
RAGGED_DOT_QUANTIZED = OpSpec(
    name="ragged_dot_quantized",
    axes=_AXES | {"values": "b g p n", "scales": "b g s w", "zero_points": "b g s w"},
    outputs=("out",),
    graded_outputs=("out",),
    sharded_axes={"g": "g", "n": "nw", "k": "kps"},
    differentiable=("lhs", "bias"),
    implementations=(
        Implementation.of_module("xla_blocked", quantized_blocked),
        Implementation.of_module("xla", quantized_reference),
    ),
    rank=_rank_quantized,
    make_arrays=make_arrays,
    examples=quantized_examples,
)
