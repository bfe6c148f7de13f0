"""Bad input: one clear error, raised when the call is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx

Q = jnp.zeros((2, 8, 4, 16))
K = jnp.zeros((2, 10, 2, 16))
NAMES = "query=f32[2,8,4,16] key=f32[2,10,2,16] value=f32[2,10,2,16]"

# keyword arguments over query=Q, key=K, value=K -> the whole message
WRONG = {
    "rank": (
        {"query": Q[0, 0]},
        "dot_product_attention: query, key and value must all be [B, length, heads, "
        "dim] or all [length, heads, dim]; got query=f32[4,16] key=f32[2,10,2,16] "
        "value=f32[2,10,2,16]. Add or merge batch dimensions.",
    ),
    "mixed_ranks": (
        {"query": Q[0]},
        "dot_product_attention: query, key and value must all be [B, length, heads, "
        "dim] or all [length, heads, dim]; got query=f32[8,4,16] key=f32[2,10,2,16] "
        "value=f32[2,10,2,16]. Add or merge batch dimensions.",
    ),
    "heads": (
        {"query": jnp.zeros((2, 8, 5, 16))},
        "dot_product_attention: query heads must be a multiple of key heads (5 % 2 "
        "!= 0); got query=f32[2,8,5,16] key=f32[2,10,2,16] value=f32[2,10,2,16]. "
        "Repeat or drop heads.",
    ),
    "head_dim": (
        {"query": Q[..., :8]},
        "dot_product_attention: query and key must have one head_dim; got "
        "query=f32[2,8,4,8] key=f32[2,10,2,16] value=f32[2,10,2,16]. Project them to "
        "one size.",
    ),
    "batch": (
        {"query": Q[:1]},
        "dot_product_attention: batch sizes must be equal; got query=f32[1,8,4,16] "
        "key=f32[2,10,2,16] value=f32[2,10,2,16]. Repeat the smaller one.",
    ),
    "value_length": (
        {"value": K[:, :9]},
        "dot_product_attention: key and value must have equal lengths and heads; got "
        "query=f32[2,8,4,16] key=f32[2,10,2,16] value=f32[2,9,2,16]. Slice or pad "
        "value to key.",
    ),
    "dtypes": (
        {"key": K.astype(jnp.bfloat16)},
        "dot_product_attention: query, key and value must have one dtype; got "
        "query=f32[2,8,4,16] key=bf16[2,10,2,16] value=f32[2,10,2,16]. Cast them, "
        "e.g. key.astype(query.dtype).",
    ),
    "integers": (
        {"query": Q.astype(int), "key": K.astype(int), "value": K.astype(int)},
        "dot_product_attention: dtype must be among float32, bfloat16, float16, "
        "float64; got query=i32[2,8,4,16] key=i32[2,10,2,16] value=i32[2,10,2,16]. "
        "Cast to one of them.",
    ),
    "mask_dtype": (
        {"mask": jnp.zeros((2, 4, 8, 10))},
        "dot_product_attention: mask must be bool; got mask=f32[2,4,8,10]. Pass it "
        "as bias?",
    ),
    "bias_dtype": (
        {"bias": jnp.zeros((2, 4, 8, 10), bool)},
        "dot_product_attention: bias must be floating; got bias=bool[2,4,8,10]. Pass "
        "it as mask?",
    ),
    "mask_shape": (
        {"mask": jnp.zeros((2, 2, 8, 10), bool)},
        "dot_product_attention: mask must be 3-D or 4-D and broadcast to [B, N, T, S] "
        "= [2, 4, 8, 10]; got mask=bool[2,2,8,10]. Give every axis its full size or "
        "1.",
    ),
    "mask_rank": (
        {"mask": jnp.zeros((8, 10), bool)},
        "dot_product_attention: mask must be 3-D or 4-D and broadcast to [B, N, T, S] "
        "= [2, 4, 8, 10]; got mask=bool[8,10]. Give every axis its full size or 1.",
    ),
    "window": (
        {"local_window_size": (-1, 0)},
        "dot_product_attention: local_window_size must be ints >= 0 or None; got (-1, "
        "0). A window of W keys that ends at the query is (W - 1, 0).",
    ),
    "lengths_dtype": (
        {"key_value_seq_lengths": jnp.zeros(2)},
        "dot_product_attention: key_value_seq_lengths must be int32 [B] = [2]; got "
        "key_value_seq_lengths=f32[2]. Cast and reshape it.",
    ),
    "lengths_shape": (
        {"query_seq_lengths": jnp.zeros(3, jnp.int32)},
        "dot_product_attention: query_seq_lengths must be int32 [B] = [2]; got "
        "query_seq_lengths=i32[3]. Cast and reshape it.",
    ),
    "lengths_beyond": (
        {"key_value_seq_lengths": np.array([4, 11], np.int32)},
        "dot_product_attention: key_value_seq_lengths must be in [0, 10]; got 11. "
        "Clip it to the array's length.",
    ),
    "lengths_negative": (
        {"query_seq_lengths": np.array([-1, 8], np.int32)},
        "dot_product_attention: query_seq_lengths must be in [0, 8]; got -1. Clip it "
        "to the array's length.",
    ),
    "segments_one_side": (
        {"query_segment_ids": jnp.zeros((2, 8), jnp.int32)},
        "dot_product_attention: key_value_segment_ids must be given when query and "
        "key lengths differ; got key_value_segment_ids=None with T=8, S=10. Pass it "
        "as [B, 10] int32.",
    ),
    "positions_shape": (
        {
            "query_positions": jnp.zeros((2, 9), jnp.int32),
            "key_value_positions": jnp.zeros((2, 10), jnp.int32),
        },
        "dot_product_attention: query_positions must be int32 [B, 8]; got "
        "query_positions=i32[2,9]. Cast and reshape it.",
    ),
    "offset": (
        {"query_offset": jnp.zeros(3, jnp.int32)},
        "dot_product_attention: query_offset must be int32 a scalar or [B] = [2]; got "
        "query_offset=i32[3]. Cast and reshape it.",
    ),
    "soft_cap": (
        {"logits_soft_cap": 0.0},
        "dot_product_attention: logits_soft_cap must be > 0; got 0.0. Use None for no "
        "soft cap.",
    ),
    "traced_scale": (
        {"scale": jnp.ones(())},
        "dot_product_attention: scale must be a Python number; got ArrayImpl. It is "
        "part of the compiled program; multiply query instead to vary it.",
    ),
    "sinks": (
        {"sinks": jnp.zeros(2)},
        "dot_product_attention: sinks must be floating [N] = [4]; got sinks=f32[2]. "
        "Pass one logit for each query head.",
    ),
    "dropout_rate": (
        {"dropout_rate": 1.0},
        "dot_product_attention: dropout_rate must be a number in [0, 1); got 1.0. Use "
        "0 to turn dropout off.",
    ),
    "dropout_key": (
        {"dropout_rate": 0.5},
        "dot_product_attention: dropout_key must be given when dropout_rate > 0; got "
        "None. Pass jax.random.key(...), or dropout_rate=0.",
    ),
    "dropout_keys": (
        {"dropout_rate": 0.5, "dropout_key": jax.random.split(jax.random.key(0), 3)},
        "dot_product_attention: dropout_key must be one jax.random key; got "
        "dropout_key=u32[3,2]. Pass jax.random.key(seed), not a batch of keys.",
    ),
    "implementation": (
        {"implementation": "xla_bloked"},
        "dot_product_attention: implementation must be None or among cpu_native, "
        "xla_decode, xla_blocked, xla; got 'xla_bloked'. Did you mean 'xla_blocked'?",
    ),
    "no_implementation": (
        {"implementation": []},
        "dot_product_attention: implementation must name at least one; got []. Pass "
        "None for the fastest one that can run.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_attention_bad_input_is_named(case):
    kwargs, message = WRONG[case]
    with pytest.raises(ValueError) as error:
        tokumx.dot_product_attention(**{"query": Q, "key": K, "value": K, **kwargs})
    assert str(error.value) == message


def test_attention_refusal_names_every_reason():
    q = jnp.zeros((1, 32, 2, 16), jnp.bfloat16)
    device = tokumx.DeviceSpec("gpu", "NVIDIA H200")
    with (
        tokumx.use_device(device),
        pytest.raises(tokumx.UnsupportedError) as error,
    ):
        tokumx.dot_product_attention(q, q, q, implementation="xla_decode")
    assert str(error.value) == (
        "dot_product_attention: no requested implementation can run "
        "key=bf16[1,32,2,16] query=bf16[1,32,2,16] value=bf16[1,32,2,16] on NVIDIA "
        "H200. xla_decode: query length must be <= 16, got 32. Pass "
        "implementation=None to allow xla."
    )


def test_attention_lengths_of_arrays_are_checked_under_the_debug_flag():
    lengths = jnp.array([4, 11], jnp.int32)

    def attend(lengths):
        return tokumx.dot_product_attention(Q, K, K, key_value_seq_lengths=lengths)

    attend(lengths)  # a device array is not read back unless asked for
    message = "key_value_seq_lengths must be in \\[0, 10\\]; got 11"
    with tokumx.debug_checks():
        with pytest.raises(ValueError, match=message):
            attend(lengths)
        compiled = jax.jit(attend).lower(lengths).compile()
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.device_get(compiled(lengths))


def test_attention_config_of_another_implementation_is_refused():
    from tokumx.ops.attention import xla_decode

    with pytest.raises(ValueError, match="config for xla_blocked must be") as error:
        tokumx.dot_product_attention(
            Q, K, K, implementation="xla_blocked", config=xla_decode.Config(block_kv=8)
        )
    assert str(error.value) == (
        "dot_product_attention: config for xla_blocked must be "
        "tokumx.ops.attention.xla_blocked.Config; got "
        "tokumx.ops.attention.xla_decode.Config. Pass config=None to have one looked "
        "up."
    )


@pytest.mark.parametrize("bad", [{"block_q": 0}, {"block_q": 8, "tile": 3}])
def test_attention_config_checks_itself(bad):
    from tokumx.ops.attention import xla_blocked

    with pytest.raises(ValueError):
        xla_blocked.Config(**{"block_kv": 8, **bad})


def test_attention_empty_arrays_take_the_reference():
    empty = jnp.zeros((1, 0, 2, 16))
    some = jnp.zeros((1, 4, 2, 16))
    assert tokumx.dot_product_attention(empty, some, some).shape == (1, 0, 2, 16)
    out = tokumx.dot_product_attention(some, empty, empty)
    assert out.shape == some.shape
    assert not np.asarray(out).any()
