"""The numerics rule and the definition, forward and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx import native
from tokumx.numerics import DISTRIBUTIONS, check, sample

NORMS = {"rms_norm": tokumx.rms_norm, "layer_norm": tokumx.layer_norm}


@pytest.fixture(params=["cpu_native", "xla_fused"])
def implementation(request, skip_unless_native):
    if request.param == "cpu_native":
        skip_unless_native()
    return request.param


def operands(shape, dtype="float32", distribution="normal", norm="rms_norm"):
    given = {"x": sample(distribution, 0, shape, dtype)}
    given["scale"] = sample("normal", 1, shape[-1:], dtype)
    if norm == "layer_norm":
        given["bias"] = sample("normal", 2, shape[-1:], dtype)
    return given


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_norm_is_as_right_as_plain(distribution, norm, implementation):
    given = operands((9, 70), "float32", distribution, norm)
    check(NORMS[norm], **given, implementation=implementation).raise_if_wrong()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_norm_with_residual_is_as_right_as_plain(dtype, norm, implementation):
    given = operands((3, 50, 130), dtype, "normal", norm)
    given["residual"] = sample("normal", 3, (3, 50, 130), dtype)
    check(
        NORMS[norm], **given, zero_centered_scale=True, implementation=implementation
    ).raise_if_wrong()


@pytest.mark.parametrize("shape", [(1,), (4095,), (63, 1), (1, 1, 17), (257, 33)])
def test_norm_odd_sizes(shape, implementation):
    check(
        tokumx.layer_norm, **operands(shape), implementation=implementation
    ).raise_if_wrong()


@pytest.mark.parametrize("rows", [4095, 4097])
def test_norm_many_rows_are_summed_in_parts(rows, implementation):
    given = operands((rows, 5), norm="layer_norm")
    check(tokumx.layer_norm, **given, implementation=implementation).raise_if_wrong()


@pytest.mark.parametrize("name", native.library().instruction_sets
                         if native.library() else ["none"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_native_norm_on_every_instruction_set(name, dtype, skip_unless_native):
    skip_unless_native()
    with native.use_instruction_set(name):
        given = operands((70, 101), dtype, "activation", "layer_norm")
        given["residual"] = sample("normal", 3, (70, 101), dtype)
        check(tokumx.layer_norm, **given, implementation="cpu_native").raise_if_wrong()


@pytest.mark.parametrize("axis", [0, 1, -1, (1, 2), (2, 0), (0, 1, 2)])
def test_norm_of_any_axes_is_its_definition(axis, implementation):
    x = np.asarray(sample("normal", 0, (4, 5, 6)), np.float64)
    axes = axis if isinstance(axis, tuple) else (axis,)
    scale = np.asarray(sample("normal", 1, tuple(x.shape[a] for a in axes)))
    bias = np.asarray(sample("normal", 2, scale.shape))
    centered = x - x.mean(axes, keepdims=True)
    expected = centered / np.sqrt(centered.var(axes, keepdims=True) + 1e-5)
    last = tuple(range(-len(axes), 0))
    expected = np.moveaxis(np.moveaxis(expected, axes, last) * scale + bias, last, axes)
    how = {"axis": axis, "implementation": implementation}
    actual = tokumx.layer_norm(x.astype(np.float32), scale, bias, **how)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_norm_residual_is_added_and_rounded_once(implementation):
    x, y = (sample("normal", i, (20, 40), "bfloat16") for i in range(2))
    out, total = tokumx.rms_norm(x, residual=y, implementation=implementation)
    exact = np.asarray(x, np.float32) + np.asarray(y, np.float32)
    np.testing.assert_array_equal(total, jnp.asarray(exact, jnp.bfloat16))
    assert out.dtype == total.dtype == jnp.bfloat16
    alone = tokumx.rms_norm(total, implementation=implementation)
    np.testing.assert_array_equal(out, alone)


def test_layer_norm_variance_is_not_a_difference_of_large_squares(implementation):
    x = jnp.asarray(sample("normal", 0, (8, 256))) * 16
    how = {"implementation": implementation}
    np.testing.assert_allclose(
        tokumx.layer_norm(jnp.round(x) + 2.0**13, **how),
        tokumx.layer_norm(jnp.round(x), **how),
        atol=1e-6,
    )


def test_norm_without_rows_has_zero_gradients(implementation):
    def loss(x, scale):
        return tokumx.rms_norm(x, scale, implementation=implementation).sum()

    dx, d_scale = jax.grad(loss, (0, 1))(jnp.zeros((2, 0, 8)), jnp.ones(8))
    assert dx.shape == (2, 0, 8)
    np.testing.assert_array_equal(d_scale, np.zeros(8))


def test_native_norm_has_the_same_digits_with_any_number_of_threads(
    skip_unless_native, monkeypatch
):
    skip_unless_native()
    given = operands((5000, 37), norm="layer_norm")
    ct = sample("normal", 9, (5000, 37))

    def gradients():
        norm = functools.partial(tokumx.layer_norm, implementation="cpu_native")
        run = jax.vjp(lambda a: norm(**a), given)[1]
        return jax.jit(run)(ct)[0]

    several = gradients()
    jax.clear_caches()
    monkeypatch.setattr("tokumx.native.normalization.threads", lambda: 1)
    for name, gradient in gradients().items():
        np.testing.assert_array_equal(gradient, several[name], err_msg=name)


@pytest.mark.parametrize("norm", NORMS)
def test_norm_keeps_rows_in_their_dtype_and_f32_statistics(norm, implementation):
    given = operands((6, 40), "bfloat16", norm=norm)
    given["residual"] = sample("normal", 3, (6, 40), "bfloat16")
    _, pull_back = jax.vjp(
        lambda a: NORMS[norm](**a, implementation=implementation), given
    )
    kept = [x for x in jax.tree.leaves(pull_back) if hasattr(x, "dtype")]
    assert not [x for x in kept if x.size == 240 and x.dtype != jnp.bfloat16]
    statistics = [x for x in kept if x.size == 6]
    assert len(statistics) == (2 if norm == "layer_norm" else 1)
    assert {x.dtype for x in statistics} == {jnp.dtype("float32")}


def test_norm_rows_of_zeros_have_finite_gradients(implementation):
    def loss(x):
        return tokumx.rms_norm(x, implementation=implementation).sum()

    gradient = jax.grad(loss)(jnp.zeros((3, 8)))
    np.testing.assert_allclose(gradient, 1e3, rtol=1e-6)


def test_norm_gradient_sums_do_not_depend_on_the_rows_around(implementation):
    """Two halves of the rows give the same sum as all, to rounding."""
    x, ct = (jnp.asarray(sample("normal", i, (300, 16))) for i in range(2))

    def gradient(x, ct):
        norm = lambda s: tokumx.rms_norm(x, s, implementation=implementation)  # noqa: E731
        return jax.vjp(norm, jnp.ones(16))[1](ct)[0]

    halves = gradient(x[:150], ct[:150]) + gradient(x[150:], ct[150:])
    np.testing.assert_allclose(gradient(x, ct), halves, atol=2e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_norm_agrees_with_torch(norm, implementation):
    torch = pytest.importorskip("torch")
    given = {n: np.asarray(v) for n, v in operands((7, 33), norm=norm).items()}
    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in given.items()}
    theirs = getattr(torch.nn.functional, norm)
    names = [n for n in ("scale", "bias") if n in given]
    expected = theirs(leaves["x"], (33,), *(leaves[n] for n in names), eps=1e-5)

    def ours(given):
        return NORMS[norm](**given, eps=1e-5, implementation=implementation)

    out, pull_back = jax.vjp(ours, given)
    np.testing.assert_allclose(out, expected.detach(), atol=2e-6)
    ct = np.asarray(sample("normal", 5, (7, 33)))
    expected.backward(torch.tensor(ct))
    for name, gradient in pull_back(ct)[0].items():
        np.testing.assert_allclose(gradient, leaves[name].grad, atol=2e-5)
