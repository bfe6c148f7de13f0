"""Under every jax transformation, on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tokumx
from tokumx.numerics import sample
from tokumx.ops.attention import xla_blocked

B, T, N, K, H, D = 4, 40, 8, 4, 16, 24
CONFIG = {
    "xla": None,
    "xla_blocked": xla_blocked.Config(block_q=16, block_kv=24, block_heads=2),
}
IMPLEMENTATIONS = list(CONFIG)


@pytest.fixture(scope="module")
def operands():
    return {
        "query": sample("normal", 0, (B, T, N, H)),
        "key": sample("normal", 1, (B, T, K, H)),
        "value": sample("normal", 2, (B, T, K, D)),
        "bias": sample("normal", 3, (1, N, T, T)),
        "sinks": sample("normal", 4, (N,)),
    }


def attend(implementation, operands, **kwargs):
    return tokumx.dot_product_attention(
        **operands,
        is_causal=True,
        implementation=implementation,
        config=CONFIG[implementation],
        **kwargs,
    )


def loss(implementation, operands, **kwargs):
    out = attend(implementation, operands, **kwargs)
    return jnp.sum(out * jnp.sin(out))


def gradient(implementation, **kwargs):
    return jax.grad(functools.partial(loss, implementation, **kwargs))


def assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a), np.asarray(e)
        np.testing.assert_allclose(a, e, rtol=0, atol=5e-6 * max(1, np.abs(e).max()))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_under_jit_equals_eager(implementation, operands):
    assert_close(
        jax.jit(gradient(implementation))(operands), gradient(implementation)(operands)
    )


@pytest.mark.parametrize("batched", [{"query"}, {"sinks"}, {"query", "bias", "key"}])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_under_vmap_equals_a_loop(implementation, batched, operands):
    """Each operand may be batched alone; gradients are kept apart by example."""
    axes = {n: 0 if n in batched else None for n in operands}
    stacked = {
        n: jnp.stack([x, 0.5 * x, -x]) if n in batched else x
        for n, x in operands.items()
    }
    grad = gradient(implementation)
    together = jax.jit(jax.vmap(grad, in_axes=(axes,)))(stacked)
    for i in range(3):
        one = {n: x[i] if n in batched else x for n, x in stacked.items()}
        assert_close({n: g[i] for n, g in together.items()}, grad(one))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_under_vmap_of_scan(implementation, operands):
    def layers(query):
        def layer(x, scale):
            out = attend(implementation, {**operands, "query": x * scale})
            return x + out[..., :H], None

        return lax.scan(layer, query, jnp.array([0.5, 1.0]))[0].sum()

    queries = jnp.stack([operands["query"], 2 * operands["query"]])
    together = jax.vmap(jax.grad(layers))(queries)
    assert_close(together, jnp.stack([jax.grad(layers)(q) for q in queries]))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_under_remat_in_scan(implementation, operands):
    def model(query, wrap):
        def layer(x, _):
            return x + attend(implementation, {**operands, "query": x})[..., :H], None

        return lax.scan(wrap(layer), query, None, 3)[0].sum()

    plain = jax.grad(model)(operands["query"], lambda f: f)
    assert_close(jax.grad(model)(operands["query"], jax.checkpoint), plain)


def test_attention_remat_policy_can_keep_the_outputs(operands):
    """Named residuals: with them saved, the forward kernel is not run again."""
    policy = jax.checkpoint_policies.save_only_these_names(
        "tokumx_dot_product_attention"
    )

    def calls(policy):
        fn = jax.checkpoint(functools.partial(loss, "xla_blocked"), policy=policy)
        found = tokumx.explain(jax.grad(fn), operands).calls
        return [c.count for c in found]

    assert calls(None) == [2]
    assert calls(policy) == [1]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_sharded_over_batch_and_heads(implementation, axis_type, operands):
    """2 x 4 devices; the shared bias and the sinks get whole gradients."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    by_head = PartitionSpec("data", None, "model")
    specs = {"query": by_head, "key": by_head, "value": by_head}
    kwargs = {"dropout_rate": 0.2, "dropout_key": jax.random.key(1)}
    expected = gradient("xla", **kwargs)(operands)
    with jax.set_mesh(mesh):
        placed = {
            n: jax.device_put(x, NamedSharding(mesh, specs.get(n, PartitionSpec())))
            for n, x in operands.items()
        }
        compiled = jax.jit(gradient(implementation, **kwargs)).lower(placed).compile()
        actual = compiled(placed)
    assert_close(actual, expected)
    assert actual["query"].sharding.spec[0] == "data"
    assert actual["key"].sharding.spec[2] == "model"


def test_attention_sharded_batch_and_heads_need_no_gather(operands):
    """Each device runs its own part: only the shared gradients are summed."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("data", None, "model"))
    placed = {n: jax.device_put(operands[n], sharding) for n in ("query", "key")}
    placed["value"] = jax.device_put(operands["value"], sharding)
    compiled = jax.jit(gradient("xla_blocked")).lower(placed).compile()
    text = compiled.as_text()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert f" {collective}(" not in text
    assert_close(compiled(placed), gradient("xla")({k: operands[k] for k in placed}))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_attention_under_vmap_of_a_sharded_batch(axis_type, operands):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    by_head = PartitionSpec("data", None, "model")
    specs = {"query": by_head, "key": by_head, "value": by_head}

    def over_scales(implementation, operands):
        fn = lambda q: attend(implementation, {**operands, "query": q})  # noqa: E731
        q = operands["query"]
        return jax.vmap(fn)(jnp.stack([q, q + 1, q + 2]))

    expected = over_scales("xla", operands)
    with jax.set_mesh(mesh):
        placed = {
            n: jax.device_put(x, NamedSharding(mesh, specs.get(n, PartitionSpec())))
            for n, x in operands.items()
        }
        actual = jax.jit(functools.partial(over_scales, "xla_blocked"))(placed)
    assert_close(actual, expected)


def test_attention_heads_that_do_not_divide_are_not_split(operands):
    """Two key heads on four devices: gathered, never wrong."""
    mesh = jax.make_mesh((4,), ("model",), axis_types=(AxisType.Auto,))
    few = {
        "query": operands["query"],
        "key": operands["key"][:, :, :2],
        "value": operands["value"][:, :, :2],
    }
    split = NamedSharding(mesh, PartitionSpec(None, None, "model"))
    placed = {**few, "query": jax.device_put(few["query"], split)}
    actual = jax.jit(gradient("xla_blocked"))(placed)
    assert_close(actual, gradient("xla")(few))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_inside_shard_map(implementation, check_vma, operands):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    by_head = PartitionSpec("data", None, "model")
    specs = {
        "query": by_head,
        "key": by_head,
        "value": by_head,
        "bias": PartitionSpec(None, "model"),
        "sinks": PartitionSpec("model"),
    }

    def local(operands):
        return lax.psum(loss(implementation, operands), ("data", "model"))

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=PartitionSpec(),
        check_vma=check_vma,
    )
    assert_close(jax.jit(jax.grad(mapped))(operands), gradient("xla")(operands))


def test_attention_with_positions_of_each_shard_is_context_parallel(operands):
    """Queries split over devices, keys whole: positions say where each is."""
    mesh = jax.make_mesh((4,), ("context",), axis_types=(AxisType.Auto,))
    positions = jnp.arange(T, dtype=jnp.int32)[None]
    split = PartitionSpec(None, "context")

    def local(q, k, v, q_positions, k_positions):
        return tokumx.dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            query_positions=q_positions,
            key_value_positions=k_positions,
            implementation="xla_blocked",
            config=CONFIG["xla_blocked"],
        )

    whole = PartitionSpec()
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(split, whole, whole, split, whole), out_specs=split
    )
    q, k, v = operands["query"], operands["key"], operands["value"]

    def summed(q, k, v):
        return jnp.sum(mapped(q, k, v, positions, positions) ** 2)

    def plain(q, k, v):
        out = tokumx.dot_product_attention(q, k, v, is_causal=True)
        return jnp.sum(out**2)

    assert_close(
        jax.grad(summed, (0, 1, 2))(q, k, v), jax.grad(plain, (0, 1, 2))(q, k, v)
    )


@pytest.mark.parametrize("implementation", ["xla", "xla_blocked", None])
def test_attention_exports_with_a_symbolic_batch(implementation, operands):
    (batch,) = export.symbolic_shape("b")

    def fn(q, k, v):
        return tokumx.dot_product_attention(
            q, k, v, is_causal=True, implementation=implementation
        )

    arrays = [operands[n] for n in ("query", "key", "value")]
    specs = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in arrays]
    exported = export.export(jax.jit(fn))(*specs)
    restored = export.deserialize(exported.serialize())
    assert_close(restored.call(*arrays), fn(*arrays))


def test_attention_exports_for_every_platform_by_default(operands):
    """Where the native kernel would run here: an export holds no custom call."""
    arrays = [operands[n] for n in ("query", "key", "value")]

    def fn(q, k, v):
        return tokumx.dot_product_attention(q, k, v, is_causal=True).sum()

    grad = jax.jit(jax.grad(fn, (0, 1, 2)))
    exported = export.export(grad, platforms=["cpu", "tpu", "cuda"])(*arrays)
    assert "tokumx_attention" not in exported.mlir_module()
    restored = export.deserialize(exported.serialize())
    assert_close(restored.call(*arrays), grad(*arrays))


def test_attention_blocked_refuses_a_symbolic_length(operands):
    (length,) = export.symbolic_shape("t")
    q = jax.ShapeDtypeStruct((B, length, N, H), jnp.float32)
    k = jax.ShapeDtypeStruct((B, length, K, H), jnp.float32)
    fn = functools.partial(tokumx.dot_product_attention, implementation="xla_blocked")
    with pytest.raises(tokumx.UnsupportedError, match="only the batch size may be"):
        export.export(jax.jit(fn))(q, k, k)


def test_attention_compiles_in_a_time_independent_of_length():
    """The program has as many operations at T = 512 as at T = 8192."""

    def operations(length):
        x = jax.ShapeDtypeStruct((1, length, 2, 32), jnp.float32)
        fn = jax.grad(
            lambda q: tokumx.dot_product_attention(
                q, q, q, is_causal=True, implementation="xla_blocked"
            ).sum()
        )
        return jax.jit(fn).lower(x).as_text().count("\n")

    assert operations(8192) == operations(1024)


def test_attention_blocked_holds_nothing_of_size_t_by_s():
    length, heads = 4096, 2
    x = jax.ShapeDtypeStruct((1, length, heads, 64), jnp.float32)

    def temporary(implementation):
        fn = jax.grad(
            lambda q, k, v: tokumx.dot_product_attention(
                q, k, v, is_causal=True, implementation=implementation
            ).sum(),
            (0, 1, 2),
        )
        return jax.jit(fn).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    one_logits_buffer = length * length * heads * 4
    assert temporary("xla") > one_logits_buffer
    assert temporary("xla_blocked") < one_logits_buffer / 4


def test_attention_reference_differentiates_twice(operands):
    """The blocked form has first derivatives only; the reference has all."""
    q = {n: operands[n][:1, :8] for n in ("query", "key", "value")}
    hessian = jax.hessian(functools.partial(loss, "xla"))
    assert all(
        jnp.isfinite(x).all()
        for x in jax.tree.leaves(hessian({n: x[..., :1, :2] for n, x in q.items()}))
    )
