"""The block schedule never skips a visible element, nor trusts a hidden one."""

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tokumx.ops.attention import masks


@st.composite
def problems(draw):
    t, s = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    rows = lambda n, top: jnp.array(  # noqa: E731
        [draw(st.lists(st.integers(0, top), min_size=n, max_size=n))], jnp.int32
    )
    has_segments, has_positions = draw(st.booleans()), draw(st.booleans())
    arrays = {}
    if has_segments:
        arrays["query_segment_ids"] = rows(t, 3)
        arrays["key_value_segment_ids"] = rows(s, 3)
    if has_positions:
        arrays["query_positions"] = rows(t, 25)
        arrays["key_value_positions"] = rows(s, 25)
    if draw(st.booleans()):
        arrays["query_offset"] = rows(1, 10)[0]
    if draw(st.booleans()):
        arrays["query_seq_lengths"] = jnp.array([draw(st.integers(0, t))], jnp.int32)
        arrays["key_value_seq_lengths"] = jnp.array(
            [draw(st.integers(0, s))], jnp.int32
        )
    if draw(st.booleans()):
        seed = draw(st.integers(0, 100))
        arrays["mask"] = jnp.asarray(
            np.random.default_rng(seed).random((1, 2, t, s)) < draw(st.floats(0, 1))
        )
    side = st.none() | st.integers(0, 12)
    rules = masks.Rules(draw(st.booleans()), draw(side), draw(side))
    blocks = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(1, 2))
    return t, s, arrays, rules, blocks


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(problems())
def test_schedule_bounds_the_element_mask(problem):
    t, s, arrays, rules, (block_q, block_kv, heads) = problem
    query, key = masks.query_side(arrays, t), masks.key_side(arrays, s)
    elements = masks.visible(rules, query, key)
    full = np.ones((1, 2, t, s), bool)
    if elements is not None:
        full &= np.asarray(elements)[:, None]
    if "mask" in arrays:
        full &= np.asarray(arrays["mask"])
    blocks = masks.block_mask(
        rules, query, key, arrays.get("mask"), block_q, block_kv, heads
    )
    some, every = (np.asarray(x) for x in blocks)
    plan = masks.schedule(blocks)
    for h, i, j in np.ndindex(2, *some.shape[2:]):
        rows, columns = slice(i * block_q, None), slice(j * block_kv, None)
        tile = full[0, h, rows, columns][:block_q, :block_kv]
        entry = (0, min(h // heads, some.shape[1] - 1), i, j)
        assert some[entry] or not tile.any()
        assert tile.all() or not (every & some)[entry]
    for h, i in np.ndindex(*np.asarray(plan.visited).shape[1:]):
        visited, unmasked = int(plan.visited[0, h, i]), int(plan.unmasked[0, h, i])
        order = np.asarray(plan.order[0, h, i])
        assert set(order[:visited]) == set(some[0, h, i].nonzero()[0])
        assert every[0, h, i][order[:unmasked]].all()


def test_schedule_of_a_causal_square_visits_the_lower_triangle():
    sides = masks.query_side({}, 64), masks.key_side({}, 64)
    rules = masks.Rules(True, None, None)
    plan = masks.schedule(masks.block_mask(rules, *sides, None, 16, 16, 1))
    assert plan.visited[0, 0].tolist() == [1, 2, 3, 4]
    assert plan.unmasked[0, 0].tolist() == [0, 1, 2, 3]


def test_schedule_of_a_window_has_a_constant_width():
    sides = masks.query_side({}, 128), masks.key_side({}, 128)
    rules = masks.Rules(True, 31, None)
    plan = masks.schedule(masks.block_mask(rules, *sides, None, 16, 16, 1))
    assert plan.visited[0, 0].tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
