"""Under every jax transformation, on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx
from tokumx.numerics import sample


def operands(batch=2, t=5, heads=4, kv_heads=4):
    return {
        "query": jnp.asarray(sample("normal", 0, (batch, t, heads, 8))),
        "key": jnp.asarray(sample("normal", 1, (batch, t, kv_heads, 8))),
    }


def loss(given, implementation, **how):
    pair = tokumx.rotary_embedding(
        **given, rotary_dim=6, implementation=implementation, **how
    )
    return sum(jnp.sum(x * jnp.sin(x)) for x in pair)


def assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, atol=2e-5)


def test_rotary_gradient_is_the_turn_back(implementation):
    x = operands()["query"]
    ct = jnp.asarray(sample("normal", 3, x.shape))
    positions = jnp.arange(5)
    how = {"implementation": implementation, "interleaved": True}
    rotate = functools.partial(tokumx.rotary_embedding, **how)
    (dx,) = jax.vjp(lambda x: rotate(x, positions=positions), x)[1](ct)
    assert_close(dx, rotate(ct, positions=-positions))


def test_rotary_keeps_no_array_of_the_querys_size(implementation):
    given = operands(t=64)
    _, pull_back = jax.vjp(
        lambda a: tokumx.rotary_embedding(**a, implementation=implementation), given
    )
    kept = [x.size for x in jax.tree.leaves(pull_back) if hasattr(x, "size")]
    assert max(kept) <= 64 * 4


@pytest.mark.parametrize(
    "batched",
    [{"query", "key"}, {"query"}, {"positions"}],
    ids=["both", "query", "positions"],
)
def test_rotary_under_vmap_equals_a_loop(batched, implementation):
    given = operands() | {"positions": jnp.arange(5)}
    axes = {n: 0 if n in batched else None for n in given}
    stacked = {
        n: jnp.stack([x, 2 * x, 3 * x]) if n in batched else x for n, x in given.items()
    }

    def grad(given):
        rest = {"positions": given["positions"]}
        floats = {n: given[n] for n in ("query", "key")}
        return jax.grad(lambda f: loss(f, implementation, **rest))(floats)

    together = jax.jit(jax.vmap(grad, in_axes=(axes,)))(stacked)
    for i in range(3):
        one = {n: x[i] if n in batched else x for n, x in stacked.items()}
        assert_close({n: g[i] for n, g in together.items()}, grad(one))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_rotary_heads_split_over_devices(kv_heads, axis_type, implementation):
    given = operands(kv_heads=kv_heads)
    grad = jax.grad(functools.partial(loss, implementation=implementation))
    expected = grad(given)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    with jax.set_mesh(mesh):
        placed = {
            n: jax.device_put(
                x,
                NamedSharding(
                    mesh, P("data", None, "model" if x.shape[2] > 1 else None)
                ),
            )
            for n, x in given.items()
        }
        lowered = jax.jit(grad).lower(placed)
        assert "all-gather" not in lowered.compile().as_text()
        actual = jax.jit(grad)(placed)
    assert_close(actual, expected)
    assert tuple(actual["query"].sharding.spec)[:3] == ("data", None, "model")


def test_rotary_in_shard_map_over_positions(implementation):
    given = operands(t=16) | {"positions": jnp.arange(16)}
    mesh = jax.make_mesh((8,), ("context",), axis_types=(AxisType.Auto,))
    specs = {"query": P(None, "context"), "key": P(None, "context")}
    specs["positions"] = P("context")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(specs,), out_specs=P())
    def parallel(given):
        return jax.lax.psum(loss(given, implementation), "context")

    floats = {n: given.pop(n) for n in ("query", "key")}
    expected = jax.grad(functools.partial(loss, implementation="xla"))(floats)
    actual = jax.jit(jax.grad(lambda f: parallel(f | given)))(floats)
    assert_close(actual, expected)


def test_rotary_in_a_scan_of_remat_layers(implementation):
    given = operands()
    tables = tokumx.rotary_tables(jnp.arange(5), 8)

    @jax.checkpoint
    def layer(given, _):
        pair = tokumx.rotary_embedding(
            **given, tables=tables, implementation=implementation
        )
        return dict(zip(given, pair, strict=True)), None

    def scanned(given):
        out, _ = jax.lax.scan(layer, given, length=3)
        return sum(jnp.sum(x * jnp.cos(x)) for x in out.values())

    def at_once(given):
        out = tokumx.rotary_embedding(**given, positions=3 * jnp.arange(5))
        return sum(jnp.sum(x * jnp.cos(x)) for x in out)

    assert_close(*(jax.jit(jax.grad(f))(given) for f in (scanned, at_once)))


def test_rotary_exports_for_every_platform(implementation):
    given = operands()
    grad = jax.jit(jax.grad(functools.partial(loss, implementation=implementation)))
    exported = jax.export.export(grad, platforms=["tpu", "cuda", "cpu"])(given)
    again = jax.export.deserialize(exported.serialize())
    assert_close(again.call(given), grad(given))


def test_rotary_takes_a_symbolic_batch_and_length():
    b, t = jax.export.symbolic_shape("b, t")
    run = jax.jit(lambda x, p: tokumx.rotary_embedding(x, positions=p))
    exported = jax.export.export(run)(
        jax.ShapeDtypeStruct((b, t, 2, 8), jnp.float32),
        jax.ShapeDtypeStruct((t,), jnp.int32),
    )
    x = operands(heads=2)["query"]
    assert_close(exported.call(x, jnp.arange(5)), run(x, jnp.arange(5)))


def test_rotary_in_float64():
    with jax.enable_x64(True):
        x = operands()["query"].astype(jnp.float64)
        out = tokumx.rotary_embedding(x, positions=jnp.arange(5) * 1000)
        back = tokumx.rotary_embedding(out, positions=-jnp.arange(5) * 1000)
        assert out.dtype == jnp.float64
        np.testing.assert_allclose(back, x, atol=1e-14)
