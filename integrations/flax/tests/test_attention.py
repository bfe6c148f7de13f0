"""tokumx's function against Flax's own, called directly."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from tokumx_flax import dot_product_attention

BATCHES = [(), (2,), (2, 3), (1, 3), (2, 1, 2)]


def with_gradients(fn, *args, **kwargs):
    """The output, and the gradients of a sum weighted unevenly."""

    def loss(*args):
        out = fn(*args, **kwargs)
        weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
        return (out.astype(jnp.float32) * weights).sum(), out

    every = tuple(range(len(args)))
    gradients, out = jax.jit(jax.grad(loss, every, has_aux=True))(*args)
    return out, gradients


def weights_and_values(query, key, value, bias=None, mask=None, is_causal=False):
    """Flax's attention through its weights, which takes any batch dimensions."""
    groups = query.shape[-2] // key.shape[-2]
    key, value = (jnp.repeat(x, groups, axis=-2) for x in (key, value))
    if is_causal:
        causal = jnp.tri(query.shape[-3], key.shape[-3], dtype=bool)
        mask = causal if mask is None else mask.astype(bool) & causal
    weights = linen.dot_product_attention_weights(query, key, bias, mask)
    return jnp.einsum("...nts,...snd->...tnd", weights, value)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_attention_any_batch_dimensions(
    batch, is_causal, qkv, assert_close, runs_tokumx
):
    args = qkv(batch)
    tokumx = functools.partial(dot_product_attention, is_causal=is_causal)
    assert runs_tokumx(tokumx, *args)
    assert_close(
        with_gradients(tokumx, *args),
        with_gradients(weights_and_values, *args, is_causal=is_causal),
    )


@pytest.mark.parametrize("implementation", ["xla", "xla_blocked", ("xla_blocked",)])
def test_attention_each_implementation(implementation, qkv, assert_close):
    args = qkv((2,), t=70, s=70)
    assert_close(
        with_gradients(
            dot_product_attention, *args, is_causal=True, implementation=implementation
        ),
        with_gradients(nnx.dot_product_attention, *args, is_causal=True),
    )


MASKS = {
    "full": (2, 3, 4, 17, 33),
    "heads-1": (2, 3, 1, 17, 33),
    "batch-1": (1, 1, 4, 17, 33),
    "mixed-batch": (2, 1, 1, 17, 33),
    "other-mixed-batch": (1, 3, 4, 1, 33),
    "keys-only": (2, 3, 1, 1, 33),
    "queries-only": (2, 3, 4, 17, 1),
    "no-batch": (4, 17, 33),
    "two-axes": (17, 33),
    "one-axis": (33,),
}


def random_mask(shape):
    """Every query sees some key: the first key, or everything."""
    mask = jax.random.bernoulli(jax.random.key(9), 0.5, shape)
    return mask.at[..., 0].set(True)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("axes", MASKS)
def test_attention_mask_broadcasts_over_any_axes(axes, is_causal, qkv, assert_close):
    shape = MASKS[axes]
    args = qkv((2, 3), t=17)
    mask = random_mask(shape)
    assert_close(
        with_gradients(dot_product_attention, *args, mask=mask, is_causal=is_causal),
        with_gradients(weights_and_values, *args, mask=mask, is_causal=is_causal),
    )


@pytest.mark.parametrize("dtype", [bool, jnp.float32, jnp.int32, jnp.bfloat16])
def test_attention_mask_of_any_dtype(dtype, qkv, assert_close):
    args = qkv()
    mask = random_mask((2, 1, 33, 33))
    # 0.25 is not 0, so True.
    given = mask if dtype is bool else mask.astype(dtype) * jnp.asarray(0.25, dtype)
    if dtype is jnp.int32:
        given = mask.astype(dtype) * 7
    assert_close(
        dot_product_attention(*args, mask=given),
        nnx.dot_product_attention(*args, mask=mask),
    )


def test_attention_mask_given_by_position_is_not_ignored(qkv, assert_close):
    args, mask = qkv(), random_mask((2, 4, 33, 33))
    assert_close(
        dot_product_attention(*args, None, mask),
        linen.dot_product_attention(*args, None, mask),
    )


@pytest.mark.parametrize("axes", [m for m in MASKS if m != "queries-only"])
def test_attention_bias_and_its_gradient(axes, qkv, assert_close):
    shape = MASKS[axes]
    args = qkv((2, 3), t=17)
    bias = jax.random.normal(jax.random.key(5), shape)
    assert_close(
        with_gradients(dot_product_attention, *args, bias),
        with_gradients(weights_and_values, *args, bias),
    )


def test_attention_bias_equal_for_all_keys_changes_nothing(qkv, assert_close):
    args = qkv((2, 3), t=17)
    bias = jax.random.normal(jax.random.key(5), MASKS["queries-only"])
    assert_close(dot_product_attention(*args, bias), dot_product_attention(*args))


def test_attention_bias_of_integers(qkv, assert_close):
    args = qkv()
    bias = np.arange(33) % 3
    assert_close(
        dot_product_attention(*args, bias),
        weights_and_values(*args, jnp.asarray(bias, jnp.float32)),
    )


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_attention_grouped_heads(kv_heads, is_causal, qkv, assert_close):
    args = qkv(n=4, k=kv_heads)
    assert_close(
        with_gradients(dot_product_attention, *args, is_causal=is_causal),
        with_gradients(nnx.dot_product_attention, *args, is_causal=is_causal),
    )


def test_attention_value_dim_of_its_own(qkv, assert_close):
    args = qkv((2, 2), d=24)
    assert_close(
        with_gradients(dot_product_attention, *args),
        with_gradients(weights_and_values, *args),
    )


def test_attention_causal_with_more_keys_sees_the_first_ones(qkv, assert_close):
    args = qkv(t=5, s=9)
    assert_close(
        dot_product_attention(*args, is_causal=True),
        nnx.dot_product_attention(*args, is_causal=True),
    )


@pytest.mark.parametrize("s", [1, 9])
def test_attention_causal_query_of_length_1_sees_the_whole_cache(s, qkv, assert_close):
    args = qkv(t=1, s=s)
    assert_close(
        dot_product_attention(*args, is_causal=True), nnx.dot_product_attention(*args)
    )
    mask = jnp.arange(s) < 4
    assert_close(
        dot_product_attention(*args, mask=mask, is_causal=True),
        dot_product_attention(*(args[0], *(x[:, :4] for x in args[1:]))),
    )


def test_attention_query_without_a_key_gives_zeros(qkv):
    args = qkv()
    mask = jnp.ones((2, 1, 33, 33), bool).at[1, :, 7].set(False)
    out, gradients = with_gradients(dot_product_attention, *args, mask=mask)
    assert not out[1, 7].any()
    assert not gradients[0][1, 7].any()
    assert all(np.isfinite(g).all() for g in gradients)
    average = nnx.dot_product_attention(*args, mask=mask)[1, 7]
    np.testing.assert_allclose(average, args[2][1].mean(0), atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_attention_half_precision_is_no_worse_than_flax(dtype, is_causal, qkv):
    args = qkv(t=65, s=65, dtype=dtype)
    exact = [x.astype(jnp.float32) for x in args]
    truth = with_gradients(nnx.dot_product_attention, *exact, is_causal=is_causal)
    plain = with_gradients(weights_and_values, *args, is_causal=is_causal)
    ours = with_gradients(dot_product_attention, *args, is_causal=is_causal)
    for t, p, o in zip(*map(jax.tree.leaves, (truth, plain, ours)), strict=True):
        assert o.dtype == dtype
        error, allowed = (np.abs(np.asarray(x, np.float32) - t).max() for x in (o, p))
        # One rounding of the largest entry: plain can be lucky.
        assert error <= allowed + np.abs(t).max() * float(jnp.finfo(dtype).eps)


def test_attention_dtype_casts_the_operands(qkv, assert_close):
    args = qkv()
    out = dot_product_attention(*args, dtype=jnp.bfloat16)
    cast = [x.astype(jnp.bfloat16) for x in args]
    assert out.dtype == jnp.bfloat16
    assert_close(out, dot_product_attention(*cast))


def test_attention_mixed_dtypes_are_promoted_as_in_flax(qkv, assert_close):
    query, key, value = qkv()
    args = query.astype(jnp.bfloat16), key, value
    assert_close(dot_product_attention(*args), nnx.dot_product_attention(*args))


def test_attention_promote_dtype_is_called_with_all_three(qkv):
    seen = []

    def promote_dtype(args, *, dtype):
        seen.append((len(args), dtype))
        return tuple(x.astype(jnp.float16) for x in args)

    out = dot_product_attention(*qkv(), dtype="any", promote_dtype=promote_dtype)
    assert out.dtype == jnp.float16
    assert seen == [(3, "any")]


def test_attention_force_fp32_for_softmax_gives_the_dtype_of_linen(qkv):
    args = qkv(dtype=jnp.bfloat16)
    for flag in (False, True):
        ours = dot_product_attention(*args, force_fp32_for_softmax=flag)
        theirs = linen.dot_product_attention(*args, force_fp32_for_softmax=flag)
        assert ours.dtype == theirs.dtype


def test_attention_vmap_over_queries_and_masks(qkv, assert_close):
    args = qkv((3, 2), t=9, s=9)
    mask = random_mask((3, 2, 1, 9, 9))
    ours, theirs = (
        jax.vmap(lambda q, k, v, m, fn=fn: fn(q, k, v, mask=m))(*args, mask)
        for fn in (dot_product_attention, nnx.dot_product_attention)
    )
    assert_close(ours, theirs)


def test_attention_names_every_argument_of_both_frameworks():
    ours = inspect.signature(dot_product_attention).parameters
    theirs = [
        inspect.signature(fn).parameters
        for fn in (nnx.dot_product_attention, linen.dot_product_attention)
    ]
    assert list(ours)[:12] == list(theirs[0])[:12] == list(theirs[1])[:12]
    assert set(ours) == set(theirs[0]) | set(theirs[1]) | {"implementation"}
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert [p.kind is positional for p in ours.values()].count(True) == 12
    for parameters in theirs:
        for name, parameter in parameters.items():
            if name != "force_fp32_for_softmax":
                assert ours[name].default == parameter.default


def test_attention_unequal_batch_dimensions_raise(qkv):
    query, _, _ = qkv((2, 3))
    _, key, value = qkv((3, 2))
    with pytest.raises(ValueError) as caught:
        dot_product_attention(query, key, value)
    assert str(caught.value) == (
        "tokumx_flax.dot_product_attention: query, key and value must be "
        "[*batch, length, heads, dim] with equal batch dimensions; got "
        "query=f32[2,3,33,4,16] key=f32[3,2,33,4,16] value=f32[3,2,33,4,16]. "
        "Broadcast them first."
    )


@pytest.mark.parametrize("shape", [(3, 1, 1, 33), (1, 2, 1, 33, 33)], ids=str)
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_attention_mask_or_bias_of_a_wrong_shape_raises(name, shape, qkv):
    with pytest.raises(ValueError) as caught:
        dot_product_attention(*qkv(), **{name: jnp.ones(shape)})
    dtype = "bool" if name == "mask" else "f32"
    got = f"{dtype}[{','.join(map(str, shape))}]"
    assert str(caught.value) == (
        f"tokumx_flax.dot_product_attention: {name} must broadcast to "
        f"[*batch, N, T, S] = [2, 4, 33, 33]; got {name}={got}. "
        "Give every axis its full size or 1."
    )


def test_attention_unknown_implementation_raises_from_tokumx(qkv):
    with pytest.raises(ValueError) as caught:
        dot_product_attention(*qkv(), implementation="xla_block")
    assert str(caught.value) == (
        "dot_product_attention: implementation must be None or among "
        "cpu_native, xla_decode, xla_blocked, xla; got 'xla_block'. Did you mean "
        "'xla_blocked'?"
    )
