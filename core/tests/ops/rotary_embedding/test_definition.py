"""Against complex numbers in f64, torch, and the frequencies of published models."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx
from tokumx.numerics import check, sample


def by_complex_numbers(x, angles, interleaved):
    """x [..., T, N, H], angles [..., T, R / 2]: a pair is one complex number."""
    x, rotary_dim = np.asarray(x, np.float64), 2 * angles.shape[-1]
    turning = x[..., :rotary_dim]
    if interleaved:
        first, second = turning[..., ::2], turning[..., 1::2]
    else:
        first, second = np.split(turning, 2, -1)
    turned = (first + 1j * second) * np.exp(1j * angles)[..., None, :]
    out = x.copy()
    if interleaved:
        out[..., 0:rotary_dim:2], out[..., 1:rotary_dim:2] = turned.real, turned.imag
    else:
        out[..., :rotary_dim] = np.concatenate([turned.real, turned.imag], -1)
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [2, 6, 10])
def test_rotary_embedding_is_a_product_of_complex_numbers(
    rotary_dim, interleaved, implementation
):
    query = sample("normal", 0, (2, 7, 3, 10))
    key = sample("normal", 1, (2, 7, 1, 10))
    positions = np.arange(14).reshape(2, 7) * 5
    angles = positions[..., None] * 100.0 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    rotated = tokumx.rotary_embedding(
        query,
        key,
        positions=positions,
        rotary_dim=rotary_dim,
        theta=100.0,
        interleaved=interleaved,
        implementation=implementation,
    )
    for x, y in zip((query, key), rotated, strict=True):
        expected = by_complex_numbers(x, angles, interleaved)
        np.testing.assert_allclose(y, expected, atol=2e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1, 1, 2), (63, 3, 34), (2, 5, 1, 128)])
def test_rotary_embedding_is_as_right_as_plain(
    shape, dtype, interleaved, implementation
):
    query = sample("normal", 0, shape, dtype)
    key = sample("activation", 1, (*shape[:-2], 2, shape[-1]), dtype)
    check(
        tokumx.rotary_embedding,
        query,
        key,
        interleaved=interleaved,
        implementation=implementation,
    ).raise_if_wrong()


def test_rotary_embedding_takes_tables_that_a_model_computes_once(implementation):
    query = jnp.asarray(sample("normal", 0, (2, 5, 3, 8)))
    positions = jnp.asarray([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    tables = tokumx.rotary_tables(positions, 4, theta=50.0)
    assert tables.cos.shape == (2, 5, 2)
    np.testing.assert_array_equal(
        tokumx.rotary_embedding(query, tables=tables, implementation=implementation),
        tokumx.rotary_embedding(
            query,
            positions=positions,
            rotary_dim=4,
            theta=50.0,
            implementation=implementation,
        ),
    )


def test_rotary_positions_may_lack_leading_axes(implementation):
    query = jnp.asarray(sample("normal", 0, (2, 3, 5, 4, 8)))

    def rotated(positions):
        return tokumx.rotary_embedding(
            query, positions=positions, implementation=implementation
        )

    expected = rotated(None)
    own = jnp.broadcast_to(jnp.arange(5), (2, 3, 5))
    for positions in (jnp.arange(5), own[:1, :1], own[:, :1], own, jnp.arange(5.0)):
        np.testing.assert_array_equal(rotated(positions), expected)


def test_rotary_embedding_keeps_lengths_and_depends_on_distance_only():
    q, k = (jnp.asarray(sample("normal", i, (1, 1, 64))) for i in range(2))

    def rotated(x, position):
        return tokumx.rotary_embedding(x, positions=jnp.asarray([position]))

    np.testing.assert_allclose(
        jnp.linalg.norm(rotated(q, 77)), jnp.linalg.norm(q), rtol=1e-6
    )
    products = [jnp.vdot(rotated(q, 9 + d), rotated(k, 4 + d)) for d in (0, 1, 50)]
    np.testing.assert_allclose(products, products[0], rtol=1e-5)


def test_rotary_embedding_agrees_with_torch(implementation):
    """torch's own, as Llama's model code writes it."""
    torch = pytest.importorskip("torch")
    values = sample("normal", 0, (2, 9, 3, 16))
    x = torch.tensor(np.asarray(values), requires_grad=True)
    rates = 1.0 / 10_000 ** (torch.arange(0, 16, 2).double() / 16)
    angles = torch.arange(9)[:, None] * rates.float()
    cos, sin = (torch.cat([f(angles)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
    half = torch.cat([-x[..., 8:], x[..., :8]], -1)
    expected = x * cos + half * sin

    def ours(x):
        return tokumx.rotary_embedding(x, implementation=implementation)

    out, pull_back = jax.vjp(ours, jnp.asarray(values))
    np.testing.assert_allclose(out, expected.detach(), atol=2e-6)
    ct = np.asarray(sample("normal", 1, values.shape))
    expected.backward(torch.tensor(ct))
    np.testing.assert_allclose(pull_back(ct)[0], x.grad, atol=2e-6)


def test_rotary_empty_batch_and_no_positions(implementation):
    for shape in ((0, 3, 2, 4), (2, 0, 2, 4)):
        out = tokumx.rotary_embedding(jnp.zeros(shape), implementation=implementation)
        assert out.shape == shape


def frequencies(scaling, rotary_dim, theta):
    """Those that the tables of position 1 were made from."""
    with jax.enable_x64(True):
        cos, sin = tokumx.rotary_tables(
            jnp.asarray([1]), rotary_dim, theta=theta, scaling=scaling, dtype="float64"
        )
        return np.asarray(jnp.arctan2(sin, cos))[0], float(jnp.hypot(cos, sin)[0, 0])


def test_llama3_scaling_keeps_fast_pairs_and_slows_down_the_others():
    """Pair by pair, as Llama 3.1's model code does it."""
    found, magnitude = frequencies(tokumx.Llama3Scaling(), 128, 500_000.0)
    kept = slowed = between = 0
    for i, rate in enumerate(found):
        plain = 500_000.0 ** (-2 * i / 128)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            expected, kept = plain, kept + 1
        elif wavelength > 8192:
            expected, slowed = plain / 8, slowed + 1
        else:
            smooth = (8192 / wavelength - 1) / 3
            expected, between = (1 - smooth) * plain / 8 + smooth * plain, between + 1
        np.testing.assert_allclose(rate, expected, rtol=1e-12)
    assert (kept, between, slowed) == (29, 6, 29)
    assert magnitude == pytest.approx(1)


def test_linear_scaling_divides_positions():
    found, _ = frequencies(tokumx.LinearScaling(4.0), 32, 1e4)
    plain, _ = frequencies(None, 32, 1e4)
    np.testing.assert_allclose(found, plain / 4, rtol=1e-12)


# Of DeepSeek-V3's config.json: 64 rotated numbers, theta 10,000, factor 40.
DEEPSEEK = tokumx.YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
# Of gpt-oss: theta 150,000, factor 32, ends not rounded.
GPT_OSS = tokumx.YarnScaling(32.0, 4096, is_truncated=False)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones():
    found, magnitude = frequencies(DEEPSEEK, 64, 1e4)
    plain, _ = frequencies(None, 64, 1e4)
    # 4096 positions are 32 turns at pair 10.47, one turn at pair 22.51.
    np.testing.assert_allclose(found[:11], plain[:11], rtol=1e-12)
    np.testing.assert_allclose(found[23:], plain[23:] / 40, rtol=1e-12)
    ramp = (np.arange(11, 23) - 10) / 13
    np.testing.assert_allclose(
        found[11:23], plain[11:23] * (1 - ramp + ramp / 40), rtol=1e-12
    )
    assert magnitude == pytest.approx(1)


def test_yarn_magnitude_is_that_of_the_model():
    _, magnitude = frequencies(GPT_OSS, 64, 150_000.0)
    assert magnitude == pytest.approx(0.1 * math.log(32) + 1)
    given = tokumx.YarnScaling(32.0, 4096, attention_factor=1.5)
    assert frequencies(given, 64, 150_000.0)[1] == pytest.approx(1.5)


def test_yarn_ends_that_are_not_rounded_make_another_ramp():
    found, _ = frequencies(GPT_OSS, 64, 150_000.0)
    plain, _ = frequencies(None, 64, 150_000.0)
    ends = [
        64 * math.log(4096 / (2 * math.pi * beta)) / (2 * math.log(150_000.0))
        for beta in (32.0, 1.0)
    ]
    ramp = np.clip((np.arange(32) - ends[0]) / (ends[1] - ends[0]), 0, 1)
    np.testing.assert_allclose(found, plain * (1 - ramp + ramp / 32), rtol=1e-12)


def test_rotary_frequencies_can_be_given():
    rates = np.asarray([0.5, 0.25], np.float32)
    tables = tokumx.rotary_tables(np.asarray([2, 3]), 4, frequencies=rates)
    angles = np.asarray([[1.0, 0.5], [1.5, 0.75]])
    np.testing.assert_allclose(tables.cos, np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(tables.sin, np.sin(angles), rtol=1e-6)


def test_rotary_angles_of_far_positions_are_those_of_f32_products():
    """As models are trained: one f32 rounding of the frequency, one of the product."""
    position, rates = 1_000_003, 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    tables = tokumx.rotary_tables(np.asarray([position]), 64)
    angles = np.float32(position) * rates.astype(np.float32)
    np.testing.assert_allclose(
        tables.cos[0], np.cos(angles, dtype=np.float64), atol=1e-5
    )
