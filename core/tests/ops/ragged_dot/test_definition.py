"""Against a loop over the groups, jax.lax and tokamax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import tokumx
from tokumx.ops.ragged_dot.xla_blocked import Config

IMPLEMENTATIONS = ["xla", "xla_blocked"]


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    return request.param


def loss(lhs, rhs, sizes, implementation):
    out = tokumx.ragged_dot(lhs, rhs, sizes, implementation=implementation)
    return jnp.sin(out).sum(), out


def peer_loss(peer, lhs, rhs, sizes):
    out = peer(lhs, rhs, sizes)
    return jnp.sin(out).sum(), out


@pytest.mark.parametrize(
    ("m", "sizes"),
    [
        (37, [37]),
        (37, [10, 0, 20, 7]),
        (37, [0, 5, 0, 0]),
        (37, [0, 0]),
        (1, [0, 1, 0]),
        (130, [65, 1, 64]),
    ],
)
def test_ragged_dot_equals_lax(m, sizes, implementation, assert_close, random_array):
    """Rows past the sum are 0 in both."""
    g = len(sizes)
    operands = random_array(0, m, 19), random_array(1, g, 19, 23)
    sizes = jnp.array(sizes, jnp.int32)
    own = jax.grad(functools.partial(loss, implementation=implementation), (0, 1), True)
    peer = jax.grad(functools.partial(peer_loss, lax.ragged_dot), (0, 1), True)
    found = jax.jit(own)(*operands, sizes)
    expected = jax.jit(peer)(*operands, sizes)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ragged_dot_equals_tokamax(dtype, assert_close, random_array):
    tokamax = pytest.importorskip("tokamax")
    lhs = jnp.asarray(random_array(0, 100, 32), dtype)
    rhs = jnp.asarray(random_array(1, 4, 32, 24), dtype)
    sizes = jnp.array([30, 0, 50, 20], jnp.int32)
    peer = functools.partial(tokamax.ragged_dot, implementation="xla")
    own = functools.partial(loss, implementation="xla_blocked")
    found = jax.jit(jax.grad(own, (0, 1), True))(lhs, rhs, sizes)
    wrapped = functools.partial(peer_loss, peer)
    expected = jax.jit(jax.grad(wrapped, (0, 1), True))(lhs, rhs, sizes)
    eps = 2e-6 if dtype == "float32" else 2e-2
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(a, b, eps)


def test_ragged_dot_of_no_rows_or_groups_is_empty_or_zero():
    sizes = np.zeros(2, np.int32)
    out = tokumx.ragged_dot(jnp.ones((0, 4)), jnp.ones((2, 4, 3)), sizes)
    assert out.shape == (0, 3)
    out = tokumx.ragged_dot(jnp.ones((5, 0)), jnp.ones((2, 0, 3)), sizes)
    np.testing.assert_array_equal(out, np.zeros((5, 3)))
    none = np.zeros(0, np.int32)
    out = tokumx.ragged_dot(jnp.ones((5, 4)), jnp.ones((0, 4, 3)), none)
    np.testing.assert_array_equal(out, np.zeros((5, 3)))
    out = tokumx.ragged_contracting_dot(jnp.ones((0, 4)), jnp.ones((0, 3)), sizes)
    np.testing.assert_array_equal(out, np.zeros((2, 4, 3)))
    gradient = jax.grad(lambda w: tokumx.ragged_dot(jnp.ones((0, 4)), w, sizes).sum())(
        jnp.ones((2, 4, 3))
    )
    np.testing.assert_array_equal(gradient, np.zeros((2, 4, 3)))


def test_ragged_dot_of_rows_in_no_group_is_zero_whatever_they_hold(
    implementation, random_array
):
    """Rows beyond the sum are often memory that nobody wrote."""
    lhs = random_array(0, 40, 8)
    lhs[25:] = np.nan
    rhs, bias = random_array(1, 3, 8, 6), random_array(2, 3, 6)
    sizes = np.array([10, 0, 15], np.int32)
    ct = random_array(3, 40, 6)
    ct[25:] = np.inf

    def run(lhs, rhs, bias):
        how = {"bias": bias, "implementation": implementation}
        return tokumx.ragged_dot(lhs, rhs, sizes, **how)

    out, pull_back = jax.vjp(run, lhs, rhs, bias)
    d_lhs, d_rhs, d_bias = pull_back(ct)
    np.testing.assert_array_equal(out[25:], 0)
    np.testing.assert_array_equal(d_lhs[25:], 0)
    for x in (out, d_lhs, d_rhs, d_bias):
        assert np.isfinite(x).all()
    # The empty group, to the bit.
    np.testing.assert_array_equal(d_rhs[1], 0)
    np.testing.assert_array_equal(d_bias[1], 0)


def test_ragged_dot_of_group_offset_is_a_part_of_the_whole(
    implementation, by_group, assert_close, random_array
):
    lhs, rhs = random_array(0, 50, 8), random_array(1, 6, 8, 7)
    bias = random_array(2, 6, 7)
    sizes = np.array([9, 0, 13, 11, 2, 8], np.int32)

    @jax.jit
    def part(rhs, bias, offset):
        how = {"bias": bias, "group_offset": offset, "implementation": implementation}
        run = functools.partial(tokumx.ragged_dot, group_sizes=sizes, **how)
        out, pull_back = jax.vjp(run, lhs, rhs)
        return out, *pull_back(jnp.ones_like(out))

    total = 0
    for offset in (0, 2, 4):
        local = slice(offset, offset + 2)
        out, d_lhs, d_rhs = part(rhs[local], bias[local], offset)
        assert_close(out, by_group(lhs, rhs[local], sizes, bias[local], offset))
        begin, end = np.cumsum([0, *sizes])[[offset, offset + 2]]
        outside = np.r_[0:begin, end:50]
        np.testing.assert_array_equal(d_lhs[outside], 0)
        ones = np.ones((50, 7))
        whole = tokumx.ragged_contracting_dot(lhs, ones.astype(np.float32), sizes)
        assert_close(d_rhs, whole[local])
        total = total + out
    assert_close(total, by_group(lhs, rhs, sizes, bias))
    # Groups beyond the last one have no rows.
    out, _, d_rhs = part(rhs[:2], bias[:2], 5)
    assert_close(out, by_group(lhs, rhs[:2], sizes, bias[:2], 5))
    np.testing.assert_array_equal(d_rhs[1], 0)


def test_ragged_contracting_dot_and_its_gradients(
    implementation, outer, by_group, assert_close, random_array
):
    lhs, rhs = random_array(0, 90, 8), random_array(1, 90, 7)
    sizes = np.array([9, 0, 65, 11], np.int32)
    run = functools.partial(
        tokumx.ragged_contracting_dot, group_sizes=sizes, implementation=implementation
    )
    out, pull_back = jax.vjp(run, lhs, rhs)
    assert_close(out, outer(lhs, rhs, sizes))
    np.testing.assert_array_equal(out[1], 0)
    ct = random_array(2, 4, 8, 7)
    d_lhs, d_rhs = pull_back(ct)
    assert_close(d_lhs, by_group(rhs, ct.swapaxes(1, 2), sizes))
    assert_close(d_rhs, by_group(lhs, ct, sizes))
    part = run(lhs, rhs, group_offset=2, num_groups=3)
    assert_close(part[:2], out[2:])
    np.testing.assert_array_equal(part[2], 0)


def test_ragged_dot_of_wrong_sizes_stays_inside_the_rows(implementation, random_array):
    """Unchecked sizes give some finite result, and touch nothing else."""
    lhs, rhs = random_array(0, 20, 4), random_array(1, 3, 4, 5)
    run = jax.jit(functools.partial(tokumx.ragged_dot, implementation=implementation))
    for sizes in ([15, 15, 15], [-4, 30, 2]):
        assert np.isfinite(run(lhs, rhs, jnp.array(sizes, jnp.int32))).all()


M, G = 70, 4


@functools.cache
def jitted(blocks):
    config = Config(blocks=blocks)
    how = {
        "implementation": "xla_blocked",
        "config": tokumx.Configs(forward=config, backward=config),
    }

    @jax.jit
    def run(lhs, rhs, sizes, ct):
        dot = functools.partial(tokumx.ragged_dot, group_sizes=sizes, **how)
        out, pull_back = jax.vjp(dot, lhs, rhs)
        return out, *pull_back(ct)

    return run


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, M), min_size=G, max_size=G),
    blocks=st.sampled_from([(16, 4), (8,), (64, 16)]),
)
def test_ragged_dot_of_random_sizes_equals_a_loop(
    cuts, blocks, by_group, outer, assert_close, random_array
):
    sizes = np.diff([0, *sorted(cuts)]).astype(np.int32)
    lhs, rhs = random_array(0, M, 9), random_array(1, G, 9, 11)
    ct = random_array(2, M, 11)
    out, d_lhs, d_rhs = jitted(blocks)(lhs, rhs, sizes, ct)
    assert_close(out, by_group(lhs, rhs, sizes))
    assert_close(d_lhs, by_group(ct, rhs.swapaxes(1, 2), sizes))
    assert_close(d_rhs, outer(lhs, ct, sizes))
