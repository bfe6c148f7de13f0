"""Every implementation against the definition, written out row by row."""

import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.ops.attention import xla_blocked, xla_decode

B, T, S, N, K, H, D = 2, 9, 12, 4, 2, 8, 6

SEGMENTS_Q = np.array([[0, 0, 0, 1, 1, 1, 2, 2, 9]] * 2, np.int32)
SEGMENTS_K = np.array([[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3]] * 2, np.int32)
POSITIONS_Q = np.array([[3, 4, 5, 0, 1, 2, 3, 0, 1], [8, 7, 6, 5, 4, 3, 2, 1, 0]])
POSITIONS_K = np.array([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1], [*range(12)]])
MASK = np.random.default_rng(0).random((B, N, T, S)) < 0.5

# name: (keyword arguments, sees(b, n, t, s))
RULES = {
    "full": ({}, lambda b, n, t, s: True),
    "causal": ({"is_causal": True}, lambda b, n, t, s: s <= t),
    "causal_end_aligned": (
        {"is_causal": True, "query_offset": S - T},
        lambda b, n, t, s: s <= t + S - T,
    ),
    "causal_offset_by_row": (
        {"is_causal": True, "query_offset": np.array([1, 3], np.int32)},
        lambda b, n, t, s: s <= t + (1, 3)[b],
    ),
    "window": ({"local_window_size": (3, 1)}, lambda b, n, t, s: -3 <= s - t <= 1),
    "window_int": ({"local_window_size": 2}, lambda b, n, t, s: abs(s - t) <= 2),
    "window_left": (
        {"local_window_size": (2, None)},
        lambda b, n, t, s: s >= t - 2,
    ),
    "window_zero": ({"local_window_size": 0}, lambda b, n, t, s: s == t),
    "causal_window": (
        {"is_causal": True, "local_window_size": (2, 5)},
        lambda b, n, t, s: t - 2 <= s <= t,
    ),
    "lengths": (
        {
            "query_seq_lengths": np.array([9, 4], np.int32),
            "key_value_seq_lengths": np.array([0, 7], np.int32),
        },
        lambda b, n, t, s: t < (9, 4)[b] and s < (0, 7)[b],
    ),
    "segments": (
        {"query_segment_ids": SEGMENTS_Q, "key_value_segment_ids": SEGMENTS_K},
        lambda b, n, t, s: SEGMENTS_Q[b, t] == SEGMENTS_K[b, s],
    ),
    "positions": (
        {
            "is_causal": True,
            "local_window_size": (3, None),
            "query_positions": POSITIONS_Q.astype(np.int32),
            "key_value_positions": POSITIONS_K.astype(np.int32),
        },
        lambda b, n, t, s: (
            POSITIONS_Q[b, t] - 3 <= POSITIONS_K[b, s] <= POSITIONS_Q[b, t]
        ),
    ),
    "mask": ({"mask": MASK}, lambda b, n, t, s: MASK[b, n, t, s]),
    "mask_by_key": (
        {"mask": MASK[:, :1, :1]},
        lambda b, n, t, s: MASK[b, 0, 0, s],
    ),
    "mask_by_query": (
        {"mask": MASK[:1, :, :, :1]},
        lambda b, n, t, s: MASK[0, n, t, 0],
    ),
    "mask_and_causal": (
        {"mask": MASK, "is_causal": True},
        lambda b, n, t, s: MASK[b, n, t, s] and s <= t,
    ),
}

IMPLEMENTATIONS = {
    "xla": None,
    "xla_blocked": xla_blocked.Config(block_q=4, block_kv=5, block_heads=2),
    "xla_decode": xla_decode.Config(block_kv=5),
}


def run(implementation, query, key, value, **kwargs):
    return tokumx.dot_product_attention(
        query,
        key,
        value,
        **kwargs,
        implementation=implementation,
        config=IMPLEMENTATIONS[implementation],
        return_residual=True,
    )


def assert_close(actual, expected, eps=5e-6):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=eps, atol=eps)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_attention_sees_what_the_rule_says(rule, implementation, truth, rand):
    kwargs, sees = RULES[rule]
    operands = rand(1, B, T, N, H), rand(2, B, S, K, H), rand(3, B, S, K, D)
    out, lse = run(implementation, *operands, **kwargs)
    expected_out, expected_lse = truth(*operands, sees)
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "extra",
    [
        {"scale": 0.7},
        {"logits_soft_cap": 1.5},
        {"sinks": np.array([0.5, -3.0, 4.0, 0.0], np.float32)},
        *(
            {"bias": np.random.default_rng(5).standard_normal(shape, np.float32)}
            for shape in [(B, N, T, S), (1, N, 1, S), (B, 1, T, 1), (N, T, S)]
        ),
        {
            "scale": 0.7,
            "logits_soft_cap": 1.5,
            "sinks": np.array([0.5, -3.0, 4.0, 0.0], np.float32),
            "bias": np.random.default_rng(5).standard_normal((B, N, T, S), np.float32),
        },
    ],
    ids=lambda extra: "-".join(
        f"{n}{np.shape(x)}" if np.ndim(x) else n for n, x in extra.items()
    ),
)
def test_attention_logits_follow_the_formula(extra, implementation, truth, rand):
    operands = rand(1, B, T, N, H), rand(2, B, S, K, H), rand(3, B, S, K, D)
    out, lse = run(implementation, *operands, is_causal=True, **extra)
    expected_out, expected_lse = truth(*operands, lambda b, n, t, s: s <= t, **extra)
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (8, 1)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_groups_query_heads_by_key_head(heads, implementation, truth, rand):
    n, k = heads
    operands = rand(1, 1, 5, n, H), rand(2, 1, 7, k, H), rand(3, 1, 7, k, D)
    out, lse = run(implementation, *operands)
    expected_out, expected_lse = truth(*operands, lambda b, n, t, s: True)
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


def test_attention_window_of_w_keys_ends_at_the_query(rand):
    """The edge: (W - 1, 0) sees exactly W keys."""
    window, length = 4, 10
    key = np.zeros((1, length, 1, 4), np.float32)
    value = np.eye(length, dtype=np.float32)[None, :, None]
    out = tokumx.dot_product_attention(
        key, key, value, local_window_size=(window - 1, 0)
    )
    seen = np.asarray(out)[0, :, 0] > 0
    assert seen.sum(1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    assert seen[9].nonzero()[0].tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_length_one_query_sees_the_cache_up_to_its_offset(
    implementation, rand
):
    operands = rand(1, 1, 1, 2, H), rand(2, 1, 20, 2, H), rand(3, 1, 20, 2, D)
    out, _ = run(implementation, *operands, is_causal=True, query_offset=12)
    cut = (operands[0], operands[1][:, :13], operands[2][:, :13])
    expected, _ = run("xla", *cut)
    assert_close(out, expected)


def test_attention_positions_of_one_side_serve_both(rand):
    x = rand(1, 1, 8, 2, H)
    positions = np.array([[0, 1, 2, 0, 1, 2, 3, 4]], np.int32)
    segments = np.array([[0, 0, 0, 1, 1, 1, 1, 1]], np.int32)
    one = tokumx.dot_product_attention(
        x, x, x, is_causal=True, query_positions=positions, query_segment_ids=segments
    )
    both = tokumx.dot_product_attention(
        x,
        x,
        x,
        is_causal=True,
        query_positions=positions,
        key_value_positions=positions,
        query_segment_ids=segments,
        key_value_segment_ids=segments,
    )
    assert jnp.array_equal(one, both)


def test_attention_packed_segments_equal_separate_calls(rand):
    """Two documents in one row, T x S blocks between them skipped."""
    x = rand(1, 1, 100, 2, H)
    segments = np.repeat([[0, 1]], [37, 63], axis=1).astype(np.int32)
    packed, _ = run("xla_blocked", x, x, x, is_causal=True, query_segment_ids=segments)
    first, _ = run("xla", x[:, :37], x[:, :37], x[:, :37], is_causal=True)
    second, _ = run("xla", x[:, 37:], x[:, 37:], x[:, 37:], is_causal=True)
    assert_close(packed, np.concatenate([first, second], 1))
