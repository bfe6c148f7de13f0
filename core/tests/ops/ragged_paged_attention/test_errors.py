"""Bad input: one clear error, raised when the call is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.ops.ragged_paged_attention import ragged_paged_attention

QUERY = jnp.zeros((6, 4, 8))
KEY = jnp.zeros((10, 16, 2, 8))
NAMES = "query=f32[6,4,8] key_cache=f32[10,16,2,8] value_cache=f32[10,16,2,8]"
DEFAULTS = {
    "query": QUERY,
    "key_cache": KEY,
    "value_cache": KEY,
    "query_start_loc": np.array([0, 1, 4, 4], np.int32),
    "seq_lens": np.array([9, 20, 0], np.int32),
    "page_table": np.array([[1, -1], [2, 3], [-1, -1]], np.int32),
}


def call(**changes):
    return ragged_paged_attention(**{**DEFAULTS, **changes})


# changed arguments -> the message after "ragged_paged_attention: "
WRONG = {
    "layout": (
        {"cache_layout": "nhd"},
        "cache_layout must be among 'NHD', 'HND'; got 'nhd'. 'NHD' is [num_pages, "
        "page_size, K, dim], 'HND' is [num_pages, K, page_size, dim].",
    ),
    "query_rank": (
        {"query": QUERY[None]},
        "query must be [num_tokens, N, H], and the caches [num_pages, page_size, K, "
        "dim]; got query=f32[1,6,4,8] key_cache=f32[10,16,2,8] "
        "value_cache=f32[10,16,2,8]. Merge batch and length of query into tokens; "
        "stack the pages.",
    ),
    "cache_rank": (
        {"value_cache": KEY[0], "cache_layout": "HND"},
        "query must be [num_tokens, N, H], and the caches [num_pages, K, page_size, "
        "dim]; got query=f32[6,4,8] key_cache=f32[10,16,2,8] value_cache=f32[16,2,8]. "
        "Merge batch and length of query into tokens; stack the pages.",
    ),
    "query_dtype": (
        {"query": QUERY.astype(jnp.int8)},
        "query's dtype must be among float32, bfloat16, float16, float64; got "
        "query=i8[6,4,8] key_cache=f32[10,16,2,8] value_cache=f32[10,16,2,8]. Cast it "
        "to one of them.",
    ),
    "cache_dtype": (
        {"value_cache": KEY.astype(jnp.int32)},
        "a cache's dtype must be among float32, bfloat16, float16, float64, int8, "
        "float8_e4m3fn, float8_e5m2; got query=f32[6,4,8] key_cache=f32[10,16,2,8] "
        "value_cache=i32[10,16,2,8]. Store it in one of them.",
    ),
    "cache_shapes": (
        {"value_cache": KEY[:, :8]},
        "key_cache and value_cache must have equal pages, page sizes and heads; got "
        "query=f32[6,4,8] key_cache=f32[10,16,2,8] value_cache=f32[10,8,2,8]. Lay out "
        "both in the same way.",
    ),
    "head_dim": (
        {"query": QUERY[..., :4]},
        "query and key_cache must have one head_dim; got query=f32[6,4,4] "
        "key_cache=f32[10,16,2,8] value_cache=f32[10,16,2,8]. Project them to one "
        "size, or pass value_cache=None if key_cache holds both key and value.",
    ),
    "combined_head_dim": (
        {"value_cache": None},
        "without value_cache, key_cache must hold key and value side by side, more "
        "than H = 8 in its last axis; got query=f32[6,4,8] key_cache=f32[10,16,2,8] "
        "value_cache=None. Pass value_cache, or concatenate([key, value], axis=-1).",
    ),
    "heads": (
        {"cache_layout": "HND"},
        "query heads must be a multiple of key heads (4 % 16 != 0); got "
        f"{NAMES}. cache_layout='HND' is [num_pages, K, page_size, dim].",
    ),
    "starts_length": (
        {"query_start_loc": np.array([0, 1, 4], np.int32)},
        "query_start_loc must be int32 [max_seqs + 1 = 4]; got "
        "query_start_loc=i32[3]. Cast and reshape it.",
    ),
    "lengths_rank": (
        {"seq_lens": np.int32(3)},
        "seq_lens must be int32 [max_seqs]; got seq_lens=i32[]. Cast and reshape it.",
    ),
    "table_rows": (
        {"page_table": np.zeros((2, 5), np.int32)},
        "page_table must be int32 [max_seqs = 3, max_pages_per_seq]; got "
        "page_table=i32[2,5]. Cast and reshape it.",
    ),
    "table_dtype": (
        {"page_table": np.zeros((3, 5), np.float32)},
        "page_table must be int32 [max_seqs = 3, max_pages_per_seq]; got "
        "page_table=f32[3,5]. Cast and reshape it.",
    ),
    "num_seqs": (
        {"num_seqs": np.array([1, 2], np.int32)},
        "num_seqs must be an int or int32 []; got num_seqs=i32[2]. Pass how many rows "
        "of seq_lens are in use.",
    ),
    "sinks": (
        {"sinks": np.zeros(2, np.float32)},
        "sinks must be floating [N] = [4]; got sinks=f32[2]. Pass one logit for each "
        "query head.",
    ),
    "scale_shape": (
        {"key_scale": np.zeros((10, 16), np.float32)},
        "key_scale must be a number, or floating [K] = [2], or of the cache's shape "
        "without its last axis, [10, 16, 2]; got key_scale=f32[10,16]. Give each "
        "cache, each head or each slot of each head one scale.",
    ),
    "scale_dtype": (
        {"value_scale": np.zeros(2, np.int32)},
        "value_scale must be a number, or floating [K] = [2], or of the cache's shape "
        "without its last axis, [10, 16, 2]; got value_scale=i32[2]. Give each cache, "
        "each head or each slot of each head one scale.",
    ),
    "traced_scale": (
        {"scale": jnp.float32(1)},
        "scale must be a Python number; got ArrayImpl. It is part of the compiled "
        "program; multiply query instead to vary it.",
    ),
    "soft_cap": (
        {"logits_soft_cap": 0.0},
        "logits_soft_cap must be > 0; got 0.0. Use None for no soft cap.",
    ),
    "window": (
        {"local_window_size": (-1, 0)},
        "local_window_size must be ints >= 0 or None; got (-1, 0). A window of W keys "
        "that ends at the token is (W - 1, 0).",
    ),
    "implementation": (
        {"implementation": "xla_block"},
        "implementation must be None or among cpu_native, xla_blocked, xla; got "
        "'xla_block'. Did you mean 'xla_blocked'?",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_ragged_paged_attention_refuses(name):
    changes, message = WRONG[name]
    with pytest.raises(ValueError) as error:
        call(**changes)
    assert str(error.value) == f"ragged_paged_attention: {message}"


# tables of values that describe no batch
WRONG_VALUES = {
    "starts_descend": (
        {"query_start_loc": np.array([0, 3, 2, 4], np.int32)},
        "query_start_loc must ascend from 0 to at most num_tokens = 6; got [0, 3, 2, "
        "4]. Repeat the last entry in unused rows.",
    ),
    "starts_past_the_end": (
        {"query_start_loc": np.array([0, 1, 4, 7], np.int32)},
        "query_start_loc must ascend from 0 to at most num_tokens = 6; got [0, 1, 4, "
        "7]. Repeat the last entry in unused rows.",
    ),
    "fewer_keys_than_tokens": (
        {"seq_lens": np.array([9, 2, 0], np.int32)},
        "seq_lens must be at least the new tokens and at most max_pages_per_seq * "
        "page_size = 32; got 2 in row 1, with 3 new tokens. Count the new tokens in, "
        "and widen page_table for longer sequences.",
    ),
    "more_keys_than_pages": (
        {"seq_lens": np.array([9, 33, 0], np.int32)},
        "seq_lens must be at least the new tokens and at most max_pages_per_seq * "
        "page_size = 32; got 33 in row 1, with 3 new tokens. Count the new tokens in, "
        "and widen page_table for longer sequences.",
    ),
    "page": (
        {"page_table": np.array([[1, -1], [2, 10], [-1, -1]], np.int32)},
        "page_table must hold pages in [0, 10) where keys are seen; got 10 in row 1, "
        "entry 1. Give the sequence its pages.",
    ),
    "count": (
        {"num_seqs": 4},
        "num_seqs must be in [0, 3]; got 4. Count the rows of seq_lens in use.",
    ),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_ragged_paged_attention_refuses_wrong_numpy_tables(name):
    changes, message = WRONG_VALUES[name]
    with pytest.raises(ValueError) as error:
        call(**changes)
    assert str(error.value) == f"ragged_paged_attention: {message}"


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_ragged_paged_attention_wrong_jax_tables_do_no_harm(name):
    """Unchecked, every index is brought into range."""
    changes, _ = WRONG_VALUES[name]
    traced = {n: jnp.asarray(x) for n, x in changes.items()}
    for implementation in ("xla", "xla_blocked", None):
        out = call(**traced, implementation=implementation)
        assert np.isfinite(out).all()


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_ragged_paged_attention_debug_checks_refuse_wrong_jax_tables(name):
    changes, message = WRONG_VALUES[name]
    traced = {n: jnp.asarray(x) for n, x in changes.items()}
    with tokumx.debug_checks(), pytest.raises(ValueError) as error:
        call(**traced)
    assert str(error.value) == f"ragged_paged_attention: {message}"


def test_ragged_paged_attention_debug_checks_refuse_when_compiled_code_runs():
    changes, message = WRONG_VALUES["page"]
    with tokumx.debug_checks():
        step = (
            jax.jit(lambda table: call(page_table=table))
            .lower(DEFAULTS["page_table"])
            .compile()
        )

    def run(table):
        jax.block_until_ready(step(table))
        jax.effects_barrier()

    run(DEFAULTS["page_table"])
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        run(changes["page_table"])
    assert f"ragged_paged_attention: {message}" in str(error.value)


def test_ragged_paged_attention_debug_checks_allow_pages_before_the_window():
    """Engines free those; the null page takes their place, or anything."""
    table = np.array([[1, -1], [10, 3], [-1, -1]], np.int32)
    with tokumx.debug_checks():
        # Row 1 has 3 new tokens of 20: the first sits at 17, and sees 16 and 17.
        call(page_table=table, local_window_size=(1, 0))
        with pytest.raises(ValueError) as error:
            call(page_table=table, local_window_size=(2, 0))
    assert str(error.value).startswith(
        "ragged_paged_attention: page_table must hold pages in [0, 10) where keys are "
        "seen; got 10 in row 1, entry 0."
    )


def test_ragged_paged_attention_named_implementation_says_what_it_cannot_run():
    empty = jnp.zeros((0, 4, 8))
    starts, lengths = np.zeros(4, np.int32), np.zeros(3, np.int32)
    changes = {"query": empty, "query_start_loc": starts, "seq_lens": lengths}
    assert call(**changes).shape == (0, 4, 8)
    with pytest.raises(tokumx.UnsupportedError) as error:
        call(**changes, implementation="xla_blocked")
    message = str(error.value)
    assert message.startswith(
        "ragged_paged_attention: no requested implementation can run "
        "key_cache=f32[10,16,2,8] page_table=i32[3,2] query=f32[0,4,8] "
        "query_start_loc=i32[4] seq_lens=i32[3] value_cache=f32[10,16,2,8] on "
    )
    assert message.endswith(
        "xla_blocked: an array is empty. Pass implementation=None to allow xla."
    )
