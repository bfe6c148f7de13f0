"""The layer against a loop over its experts, on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tokumx
from tokumx.ops.moe_routing.shapes import SHAPES

UNITS = {
    "silu": lambda g, u: g / (1 + jnp.exp(-g)) * u,
    "gelu": lambda g, u: g * (1 + jax.lax.erf(g / 2**0.5)) / 2 * u,
    "gelu_tanh": lambda g, u: (
        g * (1 + jnp.tanh((2 / jnp.pi) ** 0.5 * (g + 0.044715 * g**3))) / 2 * u
    ),
    "relu": lambda g, u: jnp.where(g > 0, g, 0) * u,
    "sigmoid": lambda g, u: 1 / (1 + jnp.exp(-g)) * u,
    "swiglu_oai": lambda g, u: (
        (jnp.clip(u, -7, 7) + 1)
        * jnp.minimum(g, 7)
        / (1 + jnp.exp(-1.702 * jnp.minimum(g, 7)))
    ),
}


def moe(arrays, **options):
    return tokumx.moe(**arrays, **options)


def loss_of(fn):
    def loss(arrays, **options):
        out = fn(arrays, **options)
        return (out * jnp.cos(out)).sum()

    return loss


@pytest.mark.parametrize("activation", UNITS)
def test_moe_follows_the_definition(activation, make_arrays, dense, assert_close):
    """In float64, with biases; all gradients of two of the units."""
    ours = functools.partial(moe, k=3, activation=activation)
    plain = functools.partial(dense, k=3, unit=UNITS[activation])
    if activation in ("silu", "swiglu_oai"):
        ours, plain = (jax.value_and_grad(loss_of(f)) for f in (ours, plain))
    with jax.enable_x64(True):
        arrays = make_arrays((4, 6), has_biases=True)
        arrays = {n: jnp.asarray(a, jnp.float64) * 3 for n, a in arrays.items()}
        assert_close(jax.jit(ours)(arrays), jax.jit(plain)(arrays), 1e-11)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_moe_routes_as_the_model_does(shape, make_arrays, dense, assert_close):
    """The model's experts and routing, on small widths."""
    arrays = make_arrays(
        (20,), experts=shape.experts, width=8, hidden=4, has_biases=shape.has_biases
    )
    options = {"k": shape.k, **shape.options()}
    found = jax.jit(functools.partial(moe, activation=shape.activation, **options))
    plain = functools.partial(dense, unit=UNITS[shape.activation], **options)
    assert_close(found(arrays), jax.jit(plain)(arrays))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_moe_returns_the_dtype_of_x(dtype, make_arrays, dense):
    arrays = {n: jnp.asarray(a, dtype) for n, a in make_arrays().items()}
    found = moe(arrays, k=2, renormalize=True)
    assert found.dtype == dtype
    wide = {n: a.astype(jnp.float32) for n, a in arrays.items()}
    expected = dense(wide, k=2, renormalize=True)
    eps = 8 * float(jnp.finfo(dtype).eps)
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(
        found.astype(jnp.float32), expected, rtol=0, atol=eps * scale
    )


def test_moe_takes_logits_in_place_of_a_router(make_arrays, assert_close):
    arrays = make_arrays((2, 3, 4))
    expected = moe(arrays, k=2)
    arrays["router_logits"] = arrays["x"] @ arrays.pop("router_weight")
    found = moe(arrays, k=2)
    assert found.shape == (2, 3, 4, 6)
    assert_close(found, expected)


def test_moe_experts_that_no_token_chooses_have_zero_gradients(make_arrays):
    arrays = make_arrays()
    arrays["router_logits"] = np.zeros((24, 8), np.float32)
    arrays["router_logits"][:, [2, 5]] = 1
    del arrays["router_weight"]
    gradients = jax.grad(loss_of(moe))(arrays, k=2)
    for name in ("w_gate", "w_up", "w_down"):
        is_used = np.abs(np.asarray(gradients[name])).sum((1, 2)) > 0
        assert np.flatnonzero(is_used).tolist() == [2, 5]


def test_moe_returns_losses_and_routing_on_request(make_arrays, assert_close):
    arrays = make_arrays((4, 6))
    out, aux = moe(arrays, k=2, return_aux=True)
    assert_close(out, moe(arrays, k=2))
    logits = arrays["x"] @ arrays["router_weight"]
    routing = tokumx.top_k_routing(logits, 2)
    assert_close(aux.logits, logits)
    assert_close(aux.routing, routing)
    balance = tokumx.load_balance_loss(routing.probs, routing.experts)
    assert_close(aux.load_balance_loss, balance)
    assert_close(aux.router_z_loss, tokumx.router_z_loss(logits))


@pytest.mark.parametrize("tokens", [0, 1])
def test_moe_of_few_tokens(tokens, make_arrays, dense, assert_close):
    arrays = make_arrays((tokens,))
    assert_close(moe(arrays, k=2), dense(arrays, k=2))


def test_moe_tokens_do_not_disturb_each_other(make_arrays):
    """One holds NaN; one has no logit above -inf, and gives zeros."""
    arrays = make_arrays()
    arrays["router_logits"] = arrays["x"] @ arrays.pop("router_weight")
    expected = np.asarray(moe(arrays, k=2))
    arrays["x"][3] = np.nan
    arrays["router_logits"][5] = -np.inf
    found = np.asarray(moe(arrays, k=2))
    assert np.isnan(found[3]).all()
    assert not found[5].any()
    others = [t for t in range(24) if t not in (3, 5)]
    np.testing.assert_allclose(found[others], expected[others], atol=1e-5)


def test_moe_passes_debug_checks(make_arrays, assert_close):
    arrays = make_arrays()
    run = functools.partial(moe, k=2)
    with tokumx.debug_checks():
        found = jax.block_until_ready(jax.jit(run)(arrays))
        jax.effects_barrier()
    assert_close(found, run(arrays))


def test_moe_under_vmap_scan_and_remat(make_arrays, assert_close):
    arrays = make_arrays()
    x = np.stack([arrays["x"], arrays["x"][::-1], -arrays["x"]])

    def layers(x, wrap):
        @wrap
        def layer(x, _):
            return x + moe({**arrays, "x": x}, k=2), None

        return (jax.lax.scan(layer, x, None, 2)[0] ** 2).sum()

    one = jax.jit(jax.grad(lambda x: layers(x, lambda f: f)))
    expected = jnp.stack([one(row) for row in x])
    together = jax.jit(jax.vmap(jax.grad(lambda x: layers(x, jax.checkpoint))))
    assert_close(together(x), expected)


SPECS = {
    "tokens": {"x": PartitionSpec("data")},
    "experts": {n: PartitionSpec("model") for n in ("w_gate", "w_up", "w_down")},
    "tokens_and_experts": {
        "x": PartitionSpec("data"),
        **{n: PartitionSpec("model") for n in ("w_gate", "w_up", "w_down")},
    },
    "batch_and_sequence": {"x": PartitionSpec("data", "model")},
    "width": {"x": PartitionSpec("data", None, "model")},
}


SHARDED = [
    *((case, AxisType.Explicit) for case in SPECS),
    *((case, AxisType.Auto) for case in ("tokens_and_experts", "width")),
]


@pytest.mark.parametrize(("case", "axis_type"), SHARDED, ids=str)
def test_moe_of_sharded_arrays(case, axis_type, make_arrays, assert_close):
    arrays = make_arrays((4, 8), width=8)
    grad = functools.partial(jax.value_and_grad(loss_of(moe)), k=2)
    expected = jax.jit(grad)(arrays)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(axis_type,) * 2)
    with jax.set_mesh(mesh):
        placed = {
            n: jax.device_put(
                a, NamedSharding(mesh, SPECS[case].get(n, PartitionSpec()))
            )
            for n, a in arrays.items()
        }
        found = jax.jit(grad)(placed)
    assert_close(found, expected)


def test_moe_holds_nothing_of_tokens_times_experts(make_arrays):
    """Forward and backward: a [tokens, experts, d] buffer would be 64 MiB."""
    t, e, d, f = 2048, 128, 64, 32
    arrays = {
        n: jax.ShapeDtypeStruct(a.shape, a.dtype)
        for n, a in make_arrays((t,), experts=e, width=d, hidden=f).items()
    }
    step = functools.partial(jax.grad(loss_of(moe)), k=2)
    memory = jax.jit(step).lower(arrays).compile().memory_analysis()
    assert t * e * d * 4 == 64 << 20
    assert memory.temp_size_in_bytes < 16 << 20


def test_moe_exports(make_arrays, assert_close):
    arrays = make_arrays()
    run = jax.jit(functools.partial(moe, k=2))
    exported = jax.export.export(run)(arrays)
    again = jax.export.deserialize(exported.serialize())
    assert_close(again.call(arrays), run(arrays))
