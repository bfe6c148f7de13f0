"""Batches and options drawn at random, against the definition in float64."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tokumx.ops.ragged_paged_attention import ragged_paged_attention, xla_blocked

# Few shapes, so that most examples run a program that is compiled already.
ROWS, TOKENS, PAGE_SIZE, ROW_PAGES = 5, 48, 4, 12
CONFIGS = {
    "xla": None,
    "xla_blocked": xla_blocked.Config(block_q=18, block_kv=8, decode_block_kv=12),
    "cpu_native": None,
}


@st.composite
def sequences(draw):
    """(new tokens, lengths), with rows that are empty or unused among them."""
    new, left = [], TOKENS
    for _ in range(ROWS):
        most = min(left, draw(st.sampled_from([0, 1, 2, 17, 40])))
        new.append(draw(st.integers(min(most, 1), most)))
        left -= new[-1]
    capacity = PAGE_SIZE * ROW_PAGES
    return new, [draw(st.integers(n, capacity)) for n in new]


@st.composite
def windows(draw):
    """(local_window_size, is_causal)"""
    side = st.sampled_from([None, 0, 1, 3, 4, 30])
    return (draw(side), draw(side)), draw(st.booleans())


def sees(local_window_size, is_causal):
    left, right = local_window_size
    return lambda query, key: (
        (not is_causal or key <= query)
        and (left is None or key >= query - left)
        and (right is None or key <= query + right)
    )


@pytest.mark.slow
@pytest.mark.parametrize("implementation", CONFIGS)
@hypothesis.given(
    sequences=sequences(),
    window=windows(),
    seed=st.integers(0, 9),
    in_use=st.booleans(),
)
@hypothesis.settings(
    deadline=None,
    max_examples=30,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.differing_executors],
)
def test_ragged_paged_attention_of_random_batches(
    implementation, make_batch, assert_close, sequences, window, seed, in_use
):
    new, lengths = sequences
    local_window_size, is_causal = window
    used = sum(-(-s // PAGE_SIZE) for s in lengths)
    batch = make_batch(
        new,
        lengths,
        PAGE_SIZE,
        padding=TOKENS - sum(new),
        spare_pages=ROW_PAGES - max(-(-s // PAGE_SIZE) for s in lengths),
        seed=seed,
    )

    def full(cache):  # one number of pages, whatever the batch holds
        extra = np.full((ROWS * ROW_PAGES - used, *cache.shape[1:]), np.nan)
        return np.concatenate([cache, extra.astype(np.float32)])

    out, lse = ragged_paged_attention(
        batch.query,
        full(batch.key_cache),
        full(batch.value_cache),
        *batch.tables,
        num_seqs=ROWS if in_use else None,
        is_causal=is_causal,
        local_window_size=local_window_size,
        implementation=implementation,
        config=CONFIGS[implementation],
        return_residual=True,
    )

    expected_out, expected_lse = batch.truth(sees(*window))
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)
