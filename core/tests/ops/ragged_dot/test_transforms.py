"""Under every jax transformation, on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tokumx

SIZES = np.array([[5, 0, 11, 4], [0, 20, 0, 4], [1, 2, 3, 4]], np.int32)


@pytest.fixture(params=["xla", "xla_blocked", "cpu_native"])
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param


@pytest.fixture
def operands(random_array):
    """lhs, rhs, sizes and bias of three problems."""
    return (
        random_array(0, 3, 24, 8),
        random_array(1, 3, 4, 8, 16),
        SIZES,
        random_array(2, 3, 4, 16),
    )


def loss(lhs, rhs, sizes, bias, implementation):
    how = {"bias": bias, "implementation": implementation}
    return jnp.sin(tokumx.ragged_dot(lhs, rhs, sizes, **how)).sum()


def contracting_loss(lhs, rhs, sizes, implementation):
    how = {"implementation": implementation}
    return jnp.sin(tokumx.ragged_contracting_dot(lhs, rhs, sizes, **how)).sum()


IN_AXES = [
    (0, None, None, None),
    (None, 0, None, None),
    (None, None, 0, None),
    (None, None, None, 0),
    (0, None, 0, None),
    (0, 0, 0, 0),
]


@pytest.mark.parametrize("in_axes", IN_AXES, ids=str)
def test_ragged_dot_under_vmap_equals_a_loop(
    in_axes, implementation, operands, assert_close
):
    given = tuple(x if a == 0 else x[0] for x, a in zip(operands, in_axes, strict=True))
    fn = functools.partial(loss, implementation=implementation)
    grad = jax.value_and_grad(fn, (0, 1, 3))
    found = jax.tree.leaves(jax.jit(jax.vmap(grad, in_axes))(*given))
    one = jax.jit(grad)
    for i in range(3):
        single = (x[i] if a == 0 else x for x, a in zip(given, in_axes, strict=True))
        for a, b in zip(found, jax.tree.leaves(one(*single)), strict=True):
            assert_close(a[i], b)


@pytest.mark.parametrize("in_axes", [(0, None, None), (None, None, 0), (0, 0, 0)])
def test_ragged_contracting_dot_under_vmap_equals_a_loop(
    in_axes, implementation, operands, random_array, assert_close
):
    full = (operands[0], random_array(3, 3, 24, 6), SIZES)
    given = tuple(x if a == 0 else x[0] for x, a in zip(full, in_axes, strict=True))

    def grad(lhs, rhs, sizes):
        """Of the loss; and the sums themselves, as those of the loss cancel."""
        out = tokumx.ragged_contracting_dot(
            lhs, rhs, sizes, implementation=implementation
        )
        fn = functools.partial(contracting_loss, implementation=implementation)
        return out, jax.grad(fn, (0, 1))(lhs, rhs, sizes)

    found = jax.tree.leaves(jax.jit(jax.vmap(grad, in_axes))(*given))
    one = jax.jit(grad)
    for i in range(3):
        single = (x[i] if a == 0 else x for x, a in zip(given, in_axes, strict=True))
        for a, b in zip(found, jax.tree.leaves(one(*single)), strict=True):
            assert_close(a[i], b)


def test_ragged_dot_inside_scan_remat_and_vmap(
    implementation, random_array, assert_close
):
    x, weights = random_array(0, 2, 24, 8), random_array(1, 3, 4, 8, 8)

    def layers(x, weights, sizes, wrap):
        @wrap
        def layer(x, given):
            how = {"implementation": implementation}
            return jnp.tanh(x + tokumx.ragged_dot(x, *given, **how)), None

        return jax.lax.scan(layer, x, (weights, sizes))[0].sum()

    fn = jax.grad(layers, (0, 1))
    plain = jax.jit(functools.partial(fn, wrap=lambda f: f))
    remat = functools.partial(fn, wrap=jax.checkpoint)
    found = jax.jit(jax.vmap(remat, (0, None, None)))(x, weights, SIZES)
    for i in range(2):
        for a, b in zip(found, plain(x[i], weights, SIZES), strict=True):
            assert_close(a[i], b)


SPECS = {
    "n": (P(), P(None, None, "x"), P(), P(None, "x")),
    "k": (P(None, "x"), P(None, "x"), P(), P()),
    "g": (P(), P("x"), P(), P("x")),
    "m": (P("x"), P(), P(), P()),
}


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("case", SPECS)
def test_ragged_dot_of_sharded_arrays(
    case, axis_type, implementation, random_array, assert_close
):
    """With K split each device has a part of the sum, and one adds the bias."""
    operands = (
        random_array(0, 24, 8),
        random_array(1, 8, 8, 16),
        np.array([3, 0, 4, 1, 2, 0, 9, 1], np.int32),
        random_array(2, 8, 16),
    )
    fn = functools.partial(loss, implementation=implementation)
    grad = jax.value_and_grad(fn, (0, 1, 3))
    expected = jax.jit(grad)(*operands)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, s))
            for x, s in zip(operands, SPECS[case], strict=True)
        ]
        compiled = jax.jit(grad).lower(*placed).compile()
        found = compiled(*placed)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(a, b)
    if implementation != "xla" and case != "m":
        assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize("spec", [P(None, "x"), P()], ids=str)
def test_ragged_contracting_dot_of_sharded_arrays(
    spec, implementation, random_array, assert_close
):
    operands = (random_array(0, 24, 8), random_array(1, 24, 16), SIZES[0])
    fn = functools.partial(contracting_loss, implementation=implementation)
    grad = jax.value_and_grad(fn, (0, 1))
    expected = jax.jit(grad)(*operands)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    placed = [
        jax.device_put(x, NamedSharding(mesh, s))
        for x, s in zip(operands, (P(), spec, P()), strict=True)
    ]
    found = jax.jit(grad)(*placed)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(a, b)


def test_ragged_dot_experts_of_a_shard_map(implementation, random_array, assert_close):
    """Every device has all rows, and two of sixteen groups."""
    lhs, rhs = random_array(0, 40, 8), random_array(1, 16, 8, 6)
    bias = random_array(2, 16, 6)
    sizes = np.random.default_rng(0).multinomial(38, np.full(16, 1 / 16))
    sizes = sizes.astype(np.int32)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def part(lhs, rhs, bias):
        first = jax.lax.axis_index("x") * rhs.shape[0]
        how = {"group_offset": first, "implementation": implementation}
        out = tokumx.ragged_dot(lhs, rhs, sizes, bias=bias, **how)
        return jax.lax.psum(out, "x")

    split = jax.shard_map(
        part, mesh=mesh, in_specs=(P(), P("x"), P("x")), out_specs=P()
    )

    def of(run):
        return jax.jit(
            jax.value_and_grad(lambda *xs: jnp.sin(run(*xs)).sum(), (0, 1, 2))
        )

    found = of(split)(lhs, rhs, bias)
    whole = functools.partial(
        tokumx.ragged_dot, group_sizes=sizes, implementation=implementation
    )
    expected = of(lambda lhs, rhs, bias: whole(lhs, rhs, bias=bias))(lhs, rhs, bias)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(a, b)


def test_ragged_dot_exports(implementation, operands, assert_close):
    lhs, rhs, sizes, bias = (x[0] for x in operands)
    grad = jax.jit(jax.grad(functools.partial(loss, implementation=implementation)))
    exported = jax.export.export(grad, platforms=["tpu", "cuda", "cpu"])
    again = jax.export.deserialize(exported(lhs, rhs, sizes, bias).serialize())
    found = again.call(lhs, rhs, sizes, bias)
    assert_close(found, grad(lhs, rhs, sizes, bias))


def test_ragged_dot_exports_with_symbolic_rows(random_array, assert_close):
    (m,) = jax.export.symbolic_shape("m")
    rhs, sizes = random_array(1, 2, 4, 3), np.array([3, 2], np.int32)
    spec = jax.ShapeDtypeStruct((m, 4), jnp.float32)
    run = jax.jit(lambda lhs: tokumx.ragged_dot(lhs, rhs, sizes))
    lhs = random_array(0, 6, 4)
    assert_close(jax.export.export(run)(spec).call(lhs), run(lhs))


def test_ragged_dot_explains_its_choice(without_native):
    shapes = [
        jax.ShapeDtypeStruct(s, d)
        for s, d in (((64, 8), "float32"), ((4, 8, 8), "float32"), ((4,), "int32"))
    ]
    (call,) = tokumx.explain(tokumx.ragged_dot, *shapes).calls
    assert call.decision.implementation == "xla_blocked"


@pytest.mark.parametrize("implementation", ["xla", "xla_blocked"])
def test_ragged_dot_holds_nothing_of_groups_times_rows(implementation):
    m, k, n, g = 512, 128, 256, 64
    shapes = (
        jax.ShapeDtypeStruct((m, k), jnp.float32),
        jax.ShapeDtypeStruct((g, k, n), jnp.float32),
        jax.ShapeDtypeStruct((g,), jnp.int32),
    )

    def step(lhs, rhs, sizes):
        run = functools.partial(tokumx.ragged_dot, implementation=implementation)
        out, pull_back = jax.vjp(lambda lhs, rhs: run(lhs, rhs, sizes), lhs, rhs)
        return out, pull_back(out)

    memory = jax.jit(step).lower(*shapes).compile().memory_analysis()
    rows = m * (k + n) * 4
    weights = g * k * n * 4 if implementation == "xla" else 4 * k * n * 4
    assert memory.temp_size_in_bytes < 3 * rows + weights
    assert memory.temp_size_in_bytes < g * m * k * 4
