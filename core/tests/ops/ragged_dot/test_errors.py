"""Bad input: one clear error, raised when the call is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.ops.ragged_dot.xla_blocked import Config

LHS, RHS = jnp.zeros((8, 4)), jnp.zeros((2, 4, 3))
SIZES = np.array([3, 5], np.int32)
BOTH = "got lhs=f32[8,4] rhs="

# changed arguments -> the message after "ragged_dot: "
WRONG = {
    "lhs_rank": (
        {"lhs": jnp.zeros((1, 8, 4))},
        "lhs must be [M, K] and rhs [G, K, N]; got lhs=f32[1,8,4] rhs=f32[2,4,3]. Use "
        "jax.vmap for further axes.",
    ),
    "rhs_rank": (
        {"rhs": jnp.zeros((4, 3))},
        f"lhs must be [M, K] and rhs [G, K, N]; {BOTH}f32[4,3]. Use jax.vmap for "
        "further axes.",
    ),
    "mixed_dtypes": (
        {"rhs": RHS.astype(jnp.bfloat16)},
        "lhs and rhs must have one dtype among float32, bfloat16, float16, float64; "
        f"{BOTH}bf16[2,4,3]. Cast one of them.",
    ),
    "integers": (
        {"lhs": LHS.astype(jnp.int32), "rhs": RHS.astype(jnp.int32)},
        "lhs and rhs must have one dtype among float32, bfloat16, float16, float64; "
        "got lhs=i32[8,4] rhs=i32[2,4,3]. Cast one of them.",
    ),
    "k": (
        {"rhs": jnp.zeros((2, 5, 3))},
        f"lhs and rhs must have the same K; {BOTH}f32[2,5,3]. It is axis 1 of lhs and "
        "axis 1 of rhs.",
    ),
    "float_sizes": (
        {"group_sizes": jnp.zeros(2)},
        "group_sizes must be a vector of integers; got f32[2]. Cast the counts to "
        "int32.",
    ),
    "sizes_rank": (
        {"group_sizes": np.int32(8)},
        "group_sizes must be a vector of integers; got i32[]. Cast the counts to "
        "int32.",
    ),
    "groups": (
        {"group_sizes": np.array([1, 2, 3], np.int32)},
        "group_sizes must have an entry for each of the 2 groups; got 3 entries. Pass "
        "group_offset if only some of the groups are here.",
    ),
    "groups_with_offset": (
        {"group_sizes": np.array([1], np.int32), "group_offset": 0},
        "with group_offset, group_sizes must have at least 2 entries, one for each "
        "group of all devices; got 1 entries. Gather the sizes of all devices.",
    ),
    "offset": (
        {"group_offset": np.zeros(1, np.int32)},
        "group_offset must be an integer scalar; got i32[1]. Pass the index of the "
        "first group that is here.",
    ),
    "bias": (
        {"bias": jnp.zeros(3)},
        "bias must be floating, [G, N] = [2, 3]; got f32[3]. A bias of all groups is "
        "added outside.",
    ),
    "preferred": (
        {"preferred_element_type": jnp.int32},
        "preferred_element_type must be among float32, bfloat16, float16, float64; got "
        "int32. Cast the result.",
    ),
    "negative": (
        {"group_sizes": np.array([4, -1], np.int32)},
        "group_sizes must be >= 0; got -1 at index 1. Count the rows of each group.",
    ),
    "sum": (
        {"group_sizes": np.array([4, 5], np.int32)},
        "sum(group_sizes) must be <= rows of lhs; got 9 > 8 (lhs f32[8,4]). Pad lhs, "
        "or drop trailing groups.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_ragged_dot_says_what_is_wrong(case):
    changed, message = WRONG[case]
    arguments = {"lhs": LHS, "rhs": RHS, "group_sizes": SIZES} | changed
    with pytest.raises(ValueError) as caught:
        tokumx.ragged_dot(**arguments)
    assert str(caught.value) == f"ragged_dot: {message}"


WRONG_CONTRACTING = {
    "rank": (
        {"rhs": RHS},
        f"lhs must be [M, K] and rhs [M, N]; {BOTH}f32[2,4,3]. "
        "Use jax.vmap for further axes.",
    ),
    "rows": (
        {"rhs": jnp.zeros((7, 3))},
        f"lhs and rhs must have the same M; {BOTH}f32[7,3]. It is axis 0 of lhs and "
        "axis 0 of rhs.",
    ),
    "num_groups": (
        {"group_offset": 1},
        "num_groups must be an int >= 0 with group_offset; got None. Pass the number "
        "of groups that are here.",
    ),
}


@pytest.mark.parametrize("case", WRONG_CONTRACTING)
def test_ragged_contracting_dot_says_what_is_wrong(case):
    changed, message = WRONG_CONTRACTING[case]
    arguments = {"lhs": LHS, "rhs": jnp.zeros((8, 3)), "group_sizes": SIZES} | changed
    with pytest.raises(ValueError) as caught:
        tokumx.ragged_contracting_dot(**arguments)
    assert str(caught.value) == f"ragged_contracting_dot: {message}"


def test_ragged_dot_values_of_device_arrays_are_checked_under_debug_only():
    sizes = jnp.array([4, 5], jnp.int32)
    tokumx.ragged_dot(LHS, RHS, sizes)
    with tokumx.debug_checks(), pytest.raises(ValueError, match="got 9 > 8"):
        tokumx.ragged_dot(LHS, RHS, sizes)


def test_ragged_dot_values_inside_jit_are_checked_under_debug():
    sizes = jnp.array([4, 5], jnp.int32)
    failure = jax.errors.JaxRuntimeError
    with tokumx.debug_checks(), pytest.raises(failure, match="got 9 > 8"):
        _run_compiled(tokumx.ragged_dot, LHS, RHS, sizes)


def _run_compiled(fn, *args):
    """Until its effects, the checks of values, are over."""
    jax.block_until_ready(jax.jit(fn)(*args))
    jax.effects_barrier()


@pytest.mark.parametrize("blocks", [(), (16, 16), (16, 64), (64, 0)], ids=str)
def test_config_blocks_must_descend(blocks):
    with pytest.raises(ValueError):
        Config(blocks=blocks)
