"""Public API of ragged_contracting_dot and its OpSpec.

M rows, K and N widths, G groups here, E groups of all devices.
"""

from typing import Any

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
from tokumx.ops.ragged_dot import (
    contracting_blocked,
    contracting_native,
    contracting_reference,
)
from tokumx.ops.ragged_dot.arguments import Checked, as_one_problem
from tokumx.ops.ragged_dot.inputs import contracting_examples, make_arrays

ArrayLike = Any


def ragged_contracting_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    *,
    group_offset: ArrayLike | int | None = None,
    num_groups: int | None = None,
    preferred_element_type: Any = None,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> jax.Array:
    """Sums the outer products of each group's rows: ragged_dot's weight gradient.

    out[g] = sum over rows m of group g of outer(lhs[m], rhs[m])
    out[g] = 0 exactly for an empty group

    Group g has the group_sizes[g] rows after those of the groups before it.

    Args:
      lhs: [M, K], rows sorted by group; f32, bf16, f16 or f64.
      rhs: [M, N], in lhs.dtype.
      group_sizes: [E] integer, >= 0, with a sum of at most M. Values are
        checked where they are numpy arrays, and everywhere under
        tokumx.debug_checks().
      group_offset: integer []; the result is of group_offset and the groups
        after it. A group beyond the E has no rows. None means 0.
      num_groups: G; needed with group_offset, and E without.
      preferred_element_type: floating dtype of the result; None means lhs.dtype.
      implementation: a name, names in order of preference, or None for the
        fastest supported one (always succeeds). See tokumx.explain.
      config: for the implementation taken, or Configs for forward and
        backward apart; None looks it up.

    Returns:
      [G, K, N], accumulated in f32 (f64 for f64), rounded once.

    Raises:
      ValueError: no implementation could accept these arguments.
      UnsupportedError: a named implementation cannot run this call here.

    Memory: `cpu_native` holds a block of the rows and of the sum for each thread,
    `xla_blocked` one group's sum and a block of rows. Gradients: lhs and rhs;
    first order. Rows of no group get zero gradients, and add nothing, whatever
    they hold. Devices may split K and N.
    Source: Gale et al. 2022, arXiv:2211.15841 (as grouped product).
    """
    checked = Checked(
        "ragged_contracting_dot",
        lhs,
        rhs,
        "lhs must be [M, K] and rhs [M, N]",
        rank=2,
    )
    checked.check_same("M", 0, 0)
    sizes = checked.group_sizes(group_sizes)
    count = checked.num_groups(sizes, group_offset, num_groups)
    arrays = {
        "lhs": checked.lhs,
        "rhs": checked.rhs,
        "group_sizes": sizes,
        "group_ids": checked.group_ids(sizes, group_offset, count),
    }
    results = call_op(
        RAGGED_CONTRACTING_DOT,
        as_one_problem(arrays),
        {"out_dtype": checked.out_dtype(preferred_element_type)},
        implementation=implementation,
        config=config,
    )
    return results["out"][0]


def _rank(call: CallSpec, device: DeviceSpec) -> Ranking:
    """Expected order of speed; measured on a CPU, see README.md."""
    del call, device
    return [
        ("cpu_native", "packs each row once"),
        ("xla_blocked", "each row is read once"),
        ("xla", "every group's product over all rows"),
    ]


RAGGED_CONTRACTING_DOT = OpSpec(
    name="ragged_contracting_dot",
    axes={
        "lhs": "b m k",
        "rhs": "b m n",
        "group_sizes": "b e",
        "group_ids": "b g",
        "out": "b g k n",
    },
    outputs=("out",),
    graded_outputs=("out",),
    sharded_axes={"n": "n", "k": "k"},
    differentiable=("lhs", "rhs"),
    implementations=(
        Implementation.of_module("cpu_native", contracting_native),
        Implementation.of_module("xla_blocked", contracting_blocked),
        Implementation.of_module("xla", contracting_reference),
    ),
    rank=_rank,
    make_arrays=make_arrays,
    examples=contracting_examples,
)
