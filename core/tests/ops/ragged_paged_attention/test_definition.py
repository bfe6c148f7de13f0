"""Every implementation against the definition, written out token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tokumx.ops.ragged_paged_attention import ragged_paged_attention, xla_blocked

IMPLEMENTATIONS = {
    "xla": None,
    "xla_blocked": xla_blocked.Config(block_q=20, block_kv=8, decode_block_kv=12),
    "cpu_native": None,
}

# (new tokens, lengths) of each sequence
BATCHES = {
    "decode": ([1, 1, 1, 1], [1, 13, 4, 40]),
    "prefill": ([17, 2, 33], [17, 2, 33]),
    "chunked_prefill": ([17, 21, 2], [30, 64, 11]),
    "mixed": ([1, 17, 0, 2, 1, 43, 1], [9, 20, 5, 2, 33, 70, 1]),
    "unused_rows": ([2, 0, 1, 0, 0], [5, 0, 7, 0, 0]),
    "first_empty": ([0, 0, 3], [0, 6, 3]),
    "one_token": ([1], [1]),
}


def run(implementation, *arguments, **keywords):
    return ragged_paged_attention(
        *arguments,
        **keywords,
        implementation=implementation,
        config=IMPLEMENTATIONS[implementation],
        return_residual=True,
    )


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param


@pytest.mark.parametrize(
    ("name", "page_size"),
    [*((name, 4) for name in BATCHES), *(("mixed", size) for size in (1, 16, 64))],
)
def test_ragged_paged_attention_follows_the_definition(
    name, page_size, implementation, make_batch, assert_close
):
    batch = make_batch(*BATCHES[name], page_size)
    out, lse = run(implementation, *batch.arguments)
    expected_out, expected_lse = batch.truth()
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


@pytest.mark.parametrize("padding", [0, 1, 40])
def test_ragged_paged_attention_padding_rows_are_zeros(
    padding, implementation, make_batch
):
    batch = make_batch(*BATCHES["mixed"], padding=padding)
    out, lse = run(implementation, *batch.arguments)
    end = batch.starts[-1]
    assert out.shape[0] == end + padding
    assert not np.asarray(out[end:]).any()
    assert (np.asarray(lse[end:]) == -np.inf).all()


WINDOWS = {
    "left": ((3, None), True, lambda q, k: q - 3 <= k <= q),
    "left_zero": ((0, None), True, lambda q, k: k == q),
    "both": (2, True, lambda q, k: q - 2 <= k <= q),
    "right_of_causal": ((None, 5), True, lambda q, k: k <= q),
    "not_causal": (None, False, lambda q, k: True),
    "not_causal_both": ((4, 2), False, lambda q, k: q - 4 <= k <= q + 2),
    "not_causal_right": ((None, 0), False, lambda q, k: k <= q),
    "wider_than_all": ((1000, 0), True, lambda q, k: k <= q),
}


@pytest.mark.parametrize("window", WINDOWS)
def test_ragged_paged_attention_sees_what_the_window_says(
    window, implementation, make_batch, assert_close
):
    local_window_size, is_causal, sees = WINDOWS[window]
    batch = make_batch(*BATCHES["mixed"])
    out, lse = run(
        implementation,
        *batch.arguments,
        local_window_size=local_window_size,
        is_causal=is_causal,
    )
    expected_out, expected_lse = batch.truth(sees)
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


@pytest.mark.parametrize("length", [3, 4, 5, 63, 64, 65])
def test_ragged_paged_attention_window_of_w_keys_ends_at_the_token(
    length, implementation
):
    """The edge: (W - 1, 0) sees exactly W keys, on either side of a page's end."""
    window, size = 4, 16
    value = np.eye(80, dtype=np.float32).reshape(5, size, 1, 80)
    out, _ = run(
        implementation,
        np.zeros((1, 1, 2), np.float32),
        np.zeros((5, size, 1, 2), np.float32),
        value,
        np.array([0, 1], np.int32),
        np.array([length], np.int32),
        np.arange(5, dtype=np.int32)[None],
        local_window_size=(window - 1, 0),
    )
    seen = np.asarray(out)[0, 0].nonzero()[0].tolist()
    assert seen == list(range(max(length - window, 0), length))


SINKS = np.array([0.5, -30.0, 4.0, 0.0], np.float32)


@pytest.mark.parametrize(
    "extra",
    [
        {"scale": 0.7},
        {"scale": -0.7},
        {"scale": 0.0},
        {"logits_soft_cap": 0.8},
        {"sinks": SINKS},
        {"scale": 1.3, "logits_soft_cap": 0.8, "sinks": SINKS},
    ],
    ids="-".join,
)
def test_ragged_paged_attention_logits_follow_the_formula(
    extra, implementation, make_batch, assert_close
):
    batch = make_batch(*BATCHES["mixed"])
    out, lse = run(implementation, *batch.arguments, **extra)
    expected_out, expected_lse = batch.truth(**extra)
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (8, 1)])
def test_ragged_paged_attention_groups_query_heads_by_key_head(
    heads, implementation, make_batch, assert_close
):
    batch = make_batch(*BATCHES["mixed"], heads=heads, dims=(8, 8))
    out, lse = run(implementation, *batch.arguments)
    expected_out, expected_lse = batch.truth()
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


@pytest.mark.parametrize("dims", [(8, 8), (8, 6), (6, 8)])
@pytest.mark.parametrize("is_combined", [False, True], ids=["apart", "combined"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_ragged_paged_attention_layouts_hold_the_same_keys(
    layout, is_combined, dims, implementation, make_batch, assert_close
):
    batch = make_batch(*BATCHES["mixed"], dims=dims)
    key, value = batch.key_cache, batch.value_cache
    if layout == "HND":
        key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
    if is_combined:
        key, value = np.concatenate([key, value], -1), None
    out, lse = run(
        implementation, batch.query, key, value, *batch.tables, cache_layout=layout
    )
    expected_out, expected_lse = batch.truth()
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


def test_ragged_paged_attention_num_seqs_hides_later_rows(
    implementation, make_batch, assert_close
):
    batch = make_batch([2, 1, 5, 4], [6, 9, 5, 8])
    full, _ = batch.truth()
    starts, lengths, table = (x.copy() for x in batch.tables)
    starts[3:], lengths[2:], table[2:] = -7, 10**6, -9
    for count in (2, np.int32(2), jnp.int32(2), np.array([2], np.int32)):
        out, _ = run(
            implementation,
            batch.query,
            batch.key_cache,
            batch.value_cache,
            *(starts, lengths, table),
            num_seqs=count,
        )
        assert_close(out[:3], full[:3])
        assert not np.asarray(out[3:]).any()


def test_ragged_paged_attention_tokens_that_see_no_key_are_zeros(
    implementation, make_batch, assert_close
):
    """seq_lens of 0 with new tokens is an error, but must do no harm."""
    batch = make_batch([1, 3, 1], [5, 4, 6])
    lengths = jnp.array([5, 0, 6], jnp.int32)
    arguments = (*batch.arguments[:4], lengths, batch.table)
    out, lse = run(implementation, *arguments)
    assert not np.asarray(out[1:4]).any()
    assert (np.asarray(lse[1:4]) == -np.inf).all()
    assert np.isfinite(out).all()
    assert np.asarray(out)[[0, 4]].all()
    out, lse = run(implementation, *arguments, sinks=SINKS)
    assert not np.asarray(out[1:4]).any()
    assert_close(lse[1:4], np.tile(SINKS, (3, 1)))


def stored(rows, dtype):
    return [np.asarray(jnp.asarray(x * 20).astype(dtype)) for x in rows]


def wide(rows, scales):
    pairs = zip(rows, scales, strict=True)
    return [x.astype(np.float64) * np.asarray(s)[..., None] for x, s in pairs]


def paged(batch, rows, layout, dtype, fill):
    x = batch.paged([r.astype(np.float32) for r in rows], fill)
    x = x.swapaxes(1, 2) if layout == "HND" else x
    return jnp.asarray(x).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "layout", "kind"),
    [
        ("int8", "NHD", "number"),
        ("int8", "HND", "slot"),
        ("float8_e4m3fn", "HND", "number"),
        ("float8_e4m3fn", "NHD", "head"),
        ("float8_e5m2", "NHD", "slot"),
        ("float32", "HND", "head"),
    ],
)
def test_ragged_paged_attention_multiplies_stored_keys_and_values_with_their_scales(
    dtype, layout, kind, implementation, make_batch, assert_close
):
    batch = make_batch(*BATCHES["mixed"])
    rng = np.random.default_rng(7)

    def scales_of(rows):
        shape = {"number": (), "head": (2,), "slot": (len(rows), 2)}[kind]
        return rng.uniform(0.02, 0.08, shape).astype(np.float32)

    keys, values = stored(batch.keys, dtype), stored(batch.values, dtype)
    scales = {}
    for name, rows in (("key", keys), ("value", values)):
        if kind == "slot":
            scales[name] = [scales_of(x) for x in rows]
        else:
            scales[name] = [scales_of(rows[0])] * len(rows)

    def laid_out(rows, dtype, fill=np.nan):
        return paged(batch, rows, layout, dtype, fill)

    garbage = 7.0 if dtype == "int8" else np.nan
    out, lse = run(
        implementation,
        batch.query,
        laid_out(keys, dtype, garbage),
        laid_out(values, dtype, garbage),
        *batch.tables,
        cache_layout=layout,
        **{
            f"{name}_scale": laid_out(s, "float32") if kind == "slot" else s[0]
            for name, s in scales.items()
        },
    )
    expected_out, expected_lse = batch.truth(
        keys=wide(keys, scales["key"]), values=wide(values, scales["value"])
    )
    assert_close(out, expected_out)
    assert_close(lse, expected_lse)


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        ("bfloat16", "bfloat16"),
        ("float16", "float32"),
        ("float32", "bfloat16"),
        ("float64", "float16"),
        ("float32", "float64"),
    ],
)
def test_ragged_paged_attention_returns_the_dtype_of_query(
    dtype, cache_dtype, implementation, make_batch
):
    batch = make_batch([2, 1], [5, 6])
    if implementation == "cpu_native" and "float64" in (dtype, cache_dtype):
        pytest.skip("cpu_native has no f64")
    with jax.enable_x64(True):
        out, lse = run(
            implementation,
            jnp.asarray(batch.query, dtype),
            jnp.asarray(batch.key_cache, cache_dtype),
            jnp.asarray(batch.value_cache, cache_dtype),
            *batch.tables,
        )
        assert out.dtype == dtype
        assert lse.dtype == ("float64" if dtype == "float64" else "float32")
        expected, _ = batch.truth()
        np.testing.assert_allclose(
            np.asarray(out).astype(np.float64), expected, rtol=0.05, atol=0.05
        )


def test_ragged_paged_attention_products_in_the_query_dtype(make_batch):
    """Config.key_dot="input", value_dot="input", the form for accelerators."""
    batch = make_batch(*BATCHES["mixed"])
    operands = (jnp.asarray(x, jnp.bfloat16) for x in batch.arguments[:3])
    out = ragged_paged_attention(
        *operands,
        *batch.tables,
        key_scale=0.5,
        config=xla_blocked.Config(
            block_q=20,
            block_kv=8,
            decode_block_kv=12,
            key_dot="input",
            value_dot="input",
        ),
    )
    expected, _ = batch.truth(keys=[x * 0.5 for x in batch.keys])
    np.testing.assert_allclose(
        np.asarray(out).astype(np.float64), expected, rtol=0.05, atol=0.05
    )


def test_ragged_paged_attention_accepts_lists_and_no_tokens_at_all():
    key = np.ones((2, 4, 1, 8), np.float32)
    out = ragged_paged_attention(
        np.ones((2, 1, 8), np.float32), key, key, [0, 1], [3], [[1]]
    )
    assert out.shape == (2, 1, 8)
    empty = ragged_paged_attention(
        np.ones((0, 1, 8), np.float32), key, key, [0, 0], [0], [[-1]]
    )
    assert empty.shape == (0, 1, 8)
