"""jit, vmap, sharding, gradients, compiled programs and their memory."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx
from tokumx import native
from tokumx.ops.ragged_paged_attention import ragged_paged_attention, xla_blocked
from tokumx.ops.ragged_paged_attention.ragged_paged_attention import (
    RAGGED_PAGED_ATTENTION,
)

MIXED = ([1, 17, 0, 2], [9, 20, 5, 12])
SINKS = np.linspace(-1, 1, 16).astype(np.float32)


@pytest.fixture(params=["xla", "xla_blocked", "cpu_native"])
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param


def test_ragged_paged_attention_under_jit_takes_traced_tables(
    implementation, make_batch, assert_close
):
    batch = make_batch(*MIXED)
    out = jax.jit(
        functools.partial(ragged_paged_attention, implementation=implementation)
    )(*batch.arguments)
    assert_close(out, batch.truth()[0])


def test_ragged_paged_attention_does_not_recompile_for_other_values(
    implementation, make_batch
):
    traces = 0

    @jax.jit
    def step(*arguments):
        nonlocal traces
        traces += 1
        *operands, count, key_scale = arguments
        return ragged_paged_attention(
            *operands,
            num_seqs=count,
            key_scale=key_scale,
            implementation=implementation,
        )

    sequences = [([1, 5, 2], [8, 7, 8]), ([6, 0, 2], [8, 0, 5]), ([1, 1, 1], [8, 3, 1])]
    for i, (new, lengths) in enumerate(sequences):
        batch = make_batch(new, lengths, padding=8 - sum(new), spare_pages=1, seed=i)
        key, value = np.zeros((2, 7, 4, 2, 8), np.float32)
        step(batch.query, key, value, *batch.tables, 3, float(i))
    assert traces == 1


def test_ragged_paged_attention_scales_are_no_part_of_the_program(make_batch):
    """Two Python numbers, one program; the same for num_seqs."""
    batch = make_batch([1, 2], [3, 4])
    texts = {
        str(
            jax.make_jaxpr(
                lambda q, scale=scale, n=n: ragged_paged_attention(
                    q, *batch.arguments[1:], key_scale=scale, num_seqs=n
                )
            )(batch.query)
        )
        for scale, n in ((0.5, 1), (0.25, 2))
    }
    names = {re.search(r"name=(tokumx_\w+)", text)[1] for text in texts}
    assert len(names) == 1


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)])
def test_ragged_paged_attention_under_vmap_equals_a_loop(
    in_axes, implementation, make_batch, assert_close
):
    batch = make_batch(*MIXED)
    other = make_batch(MIXED[0], [9, 17, 8, 2])  # other lengths, as many pages
    lengths = np.stack([batch.lengths, other.lengths])
    queries = np.stack([batch.query, 2 * batch.query])
    run = functools.partial(ragged_paged_attention, implementation=implementation)

    def one(query, lengths):
        arguments = list(batch.arguments)
        arguments[0], arguments[4] = query, lengths
        return run(*arguments)

    operands = (
        queries if in_axes[0] == 0 else queries[0],
        lengths if in_axes[1] == 0 else lengths[0],
    )
    out = jax.jit(jax.vmap(one, in_axes))(*operands)
    for i in range(2):
        picked = (
            x if a is None else x[i] for x, a in zip(operands, in_axes, strict=True)
        )
        assert_close(out[i], jax.jit(one)(*picked))


def test_ragged_paged_attention_under_vmap_of_caches(
    implementation, make_batch, assert_close
):
    batch = make_batch(*MIXED)
    key = jnp.stack([batch.key_cache, batch.key_cache * 2, batch.key_cache * 3])
    run = functools.partial(ragged_paged_attention, implementation=implementation)

    def one(query, key):
        return run(query, key, *batch.arguments[2:])

    queries = jnp.stack([batch.query, batch.query * 2])
    out = jax.vmap(jax.vmap(one, (0, None)), (None, 0))(queries, key)
    assert_close(out[2, 1], one(queries[1], key[2]))


CASES = {
    "NHD": ("NHD", False),
    "HND": ("HND", False),
    "HND-combined": ("HND", True),
}


def sharded_case(name, make_batch):
    """(function of arrays, arrays, their specs) with 8 key heads over "x"."""
    layout, is_combined = CASES[name]
    batch = make_batch(*MIXED, heads=(16, 8), dims=(8, 8))
    key, value = batch.key_cache, batch.value_cache
    spec = P(None, None, "x")
    if layout == "HND":
        key, value, spec = key.swapaxes(1, 2), value.swapaxes(1, 2), P(None, "x")
    caches = (np.concatenate([key, value], -1),) if is_combined else (key, value)

    def run(query, sinks, scale, *caches):
        key, value = (*caches, None)[:2]
        return ragged_paged_attention(
            query,
            key,
            value,
            *batch.tables,
            sinks=sinks,
            key_scale=scale,
            cache_layout=layout,
            implementation=run.implementation,
            return_residual=True,
        )

    scale = np.linspace(0.5, 1.5, 8).astype(np.float32)
    arrays = (batch.query, SINKS, scale, *caches)
    return run, arrays, (P(None, "x"), P("x"), P("x"), *(spec for _ in caches))


def collectives(compiled):
    return set(re.findall(r"all-\w+|reduce-scatter|collective-\w+", compiled.as_text()))


@pytest.mark.parametrize("parts", [2, 8])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_ragged_paged_attention_heads_are_split_without_communication(
    case, axis_type, parts, implementation, make_batch, assert_close
):
    run, arrays, specs = sharded_case(case, make_batch)
    run.implementation = implementation
    expected = jax.jit(run)(*arrays)
    mesh = Mesh(np.array(jax.devices()[:parts]), ("x",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, s))
            for x, s in zip(arrays, specs, strict=True)
        ]
        compiled = jax.jit(run).lower(*placed).compile()
        results = compiled(*placed)
    assert collectives(compiled) == set()
    for actual, wanted in zip(results, expected, strict=True):
        assert actual.sharding.spec[:2] == (None, "x")
        assert_close(actual, wanted)


def test_ragged_paged_attention_inside_shard_map(
    implementation, make_batch, assert_close
):
    run, arrays, specs = sharded_case("NHD", make_batch)
    run.implementation = implementation
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    split = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P(None, "x"))
    for actual, wanted in zip(jax.jit(split)(*arrays), run(*arrays), strict=True):
        assert_close(actual, wanted)


def test_ragged_paged_attention_reference_has_gradients(make_batch):
    """Finite ones, past NaN in unused slots; equal to a difference quotient."""
    batch = make_batch([1, 3], [5, 6], padding=0)
    direction = np.random.default_rng(1).standard_normal(batch.query.shape)

    def loss(query):
        out = ragged_paged_attention(query, *batch.arguments[1:], implementation="xla")
        return (out**2).sum()

    with jax.enable_x64(True):
        query = jnp.asarray(batch.query, jnp.float64)
        step = 1e-6 * direction
        quotient = (loss(query + step) - loss(query - step)) / 2e-6
        slope = (jax.grad(loss)(query) * direction).sum()
        np.testing.assert_allclose(slope, quotient, rtol=1e-6)


def test_ragged_paged_attention_blocked_says_that_it_has_no_gradient(make_batch):
    batch = make_batch([1, 3], [5, 6], padding=0)

    def loss(query):
        out = ragged_paged_attention(
            query, *batch.arguments[1:], implementation="xla_blocked"
        )
        return out.sum()

    with pytest.raises(tokumx.UnsupportedError) as error:
        jax.grad(loss)(batch.query)
    assert str(error.value) == (
        "ragged_paged_attention: xla_blocked has no gradient, it is for serving; got "
        "a gradient of ragged_paged_attention(key_cache=f32[5,4,2,8], "
        "page_table=i32[2,4], query=f32[4,4,8], query_start_loc=i32[3], "
        "seq_lens=i32[2], value_cache=f32[5,4,2,6], is_causal=True, "
        "scale=0.3535533905932738, window=(None, None)). Pass implementation='xla', "
        "which has one."
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("case", CASES)
def test_ragged_paged_attention_blocked_never_holds_the_cache(case, dtype):
    layout, is_combined = CASES[case]
    rows, row_pages, size, k, h = 8, 128, 16, 4, 64
    shape = (rows * row_pages, *((size, k) if layout == "NHD" else (k, size)))
    cache = jax.ShapeDtypeStruct((*shape, 2 * h if is_combined else h), dtype)
    int32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)

    def run(query, key, value, *tables):
        return ragged_paged_attention(query, key, value, *tables, cache_layout=layout)

    compiled = (
        jax.jit(run)
        .lower(
            jax.ShapeDtypeStruct((rows, 2 * k, h), jnp.float32),
            cache,
            None if is_combined else cache,
            *(int32((rows + 1,)), int32((rows,)), int32((rows, row_pages))),
        )
        .compile()
    )
    gathered = 2 * rows * row_pages * size * k * h * 4
    assert gathered == 32 << 20
    assert compiled.memory_analysis().temp_size_in_bytes < gathered / 8


def test_ragged_paged_attention_reference_exports_with_a_symbolic_size(make_batch):
    batch = make_batch(*MIXED)
    pages = jax.export.symbolic_shape("pages")
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batch.arguments]
    for i in (1, 2):
        arrays[i] = jax.ShapeDtypeStruct((*pages, *arrays[i].shape[1:]), jnp.float32)
    exported = jax.export.export(jax.jit(ragged_paged_attention))(*arrays)
    out = exported.call(*(jnp.asarray(x) for x in batch.arguments))
    np.testing.assert_allclose(out[:20], batch.truth()[0][:20], atol=5e-6)


def test_ragged_paged_attention_explains_its_choice(make_batch):
    long, short = (
        make_batch([1] * 3, [300] * 3, padding=0),
        make_batch([1], [9], padding=0),
    )
    portable = functools.partial(
        ragged_paged_attention, implementation=["xla_blocked", "xla"]
    )
    text = str(tokumx.explain(portable, *long.arguments))
    assert "implementation  xla_blocked: asked for by name" in text
    text = str(tokumx.explain(ragged_paged_attention, *long.arguments))
    first = "xla_blocked: reads only the pages that are seen"
    if native.why_unavailable() is None:
        first = "cpu_native: C++ that converts the pages as it reads them"
    assert f"implementation  {first}" in text
    assert "not xla         can run; expected slower" in text
    order = [name for name, _ in RAGGED_PAGED_ATTENTION.rank(*call_of(short))]
    assert order.index("xla") < order.index("xla_blocked")


def call_of(batch):
    (traced,) = tokumx.explain(ragged_paged_attention, *batch.arguments).calls
    return traced.decision.call, traced.decision.device


@pytest.mark.parametrize("new_tokens", [1, 300])
def test_ragged_paged_attention_search_space_holds_the_heuristic(
    new_tokens, make_batch
):
    batch = make_batch([new_tokens] * 4, [600] * 4, page_size=16)
    call, device = call_of(batch)
    space = xla_blocked.search_space(call, device, "forward")
    assert xla_blocked.heuristic_config(call, device, "forward") in space
    assert len(space) == len(set(space)) > 4
