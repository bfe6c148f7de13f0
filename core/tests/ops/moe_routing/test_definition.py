"""Routing and permutation against their definitions."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import tokumx
from tokumx.ops.moe_routing.shapes import SHAPES

OPTIONS = {
    **{s.name: (s.experts, s.k, s.options()) for s in SHAPES},
    "softmax": (16, 3, {}),
    "sigmoid": (16, 3, {"score": "sigmoid", "scale": 0.5}),
    "softmax_bias": (16, 3, {"correction_bias": np.linspace(-0.2, 0.2, 16)}),
    "softmax_groups": (24, 4, {"num_groups": 6, "top_groups": 2}),
    "groups_of_one": (6, 2, {"num_groups": 6, "top_groups": 3, "score": "sigmoid"}),
    "one_group": (6, 2, {"num_groups": 1, "top_groups": 1}),
    "all_experts": (5, 5, {"renormalize": True, "scale": 3.0}),
    "one_expert": (1, 1, {}),
}
INF = np.inf


@pytest.fixture(params=["xla", "xla_rounds"])
def implementation(request):
    return request.param


@pytest.fixture(params=["xla", "xla_gather"])
def mover(request):
    return request.param


@pytest.mark.parametrize("name", OPTIONS)
def test_top_k_routing_follows_the_definition(
    name, implementation, route_rows, assert_close
):
    num_experts, k, options = OPTIONS[name]
    logits = np.random.default_rng(0).standard_normal((33, num_experts), np.float32)
    found = tokumx.top_k_routing(logits, k, **options, implementation=implementation)
    weights, experts, probs = route_rows(logits, k, **options)
    np.testing.assert_array_equal(found.experts, experts)
    assert_close(found.weights, weights)
    assert_close(found.probs, probs)
    assert found.experts.dtype == jnp.int32


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_top_k_routing_takes_any_leading_axes(shape, implementation):
    logits = np.random.default_rng(0).standard_normal((*shape, 8), np.float32)
    found = tokumx.top_k_routing(logits, 2, implementation=implementation)
    flat = tokumx.top_k_routing(logits.reshape(-1, 8), 2, implementation="xla")
    for x, y in zip(found, flat, strict=True):
        np.testing.assert_array_equal(x, np.reshape(y, (*shape, y.shape[-1])))


def test_top_k_routing_of_no_tokens(implementation):
    found = tokumx.top_k_routing(jnp.zeros((0, 8)), 2, implementation=implementation)
    assert [x.shape for x in found] == [(0, 2), (0, 2), (0, 8)]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("bias", [None, np.zeros(8, np.float32)])
def test_top_k_routing_equal_values_go_to_the_lower_index(score, bias, implementation):
    run = functools.partial(
        tokumx.top_k_routing,
        k=3,
        score=score,
        correction_bias=bias,
        implementation=implementation,
    )
    signed_zeros = np.array([-0.0, 0.0, -1, 0.0, -0.0, 0, 0, 0], np.float32)
    logits = np.stack([np.zeros(8), np.arange(8) // 4, signed_zeros])
    expected = [[0, 1, 2], [4, 5, 6], [0, 1, 3]]
    np.testing.assert_array_equal(run(logits.astype(np.float32)).experts, expected)


def test_top_k_routing_equal_groups_go_to_the_lower_index(implementation):
    found = tokumx.top_k_routing(
        jnp.zeros((2, 12)),
        5,
        num_groups=4,
        top_groups=2,
        implementation=implementation,
    )
    np.testing.assert_array_equal(found.experts, [[0, 1, 2, 3, 4]] * 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"renormalize": True},
        {"normalize": "after"},
        {"score": "sigmoid"},
        {"score": "sigmoid", "renormalize": True},
        {"score": "sigmoid", "num_groups": 2, "top_groups": 1, "scale": 2.5},
        {"correction_bias": np.array([0, -1, 1, 0], np.float32)},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_top_k_routing_minus_infinity_has_no_weight(options, implementation):
    """A row with one finite logit, and one without."""
    logits = jnp.array([[-INF, -INF, -INF, 1.0], [-INF] * 4, [0.0, 1.0, -1.0, 2.0]])

    def loss(logits):
        found = tokumx.top_k_routing(
            logits, 2, **options, implementation=implementation
        )
        return (found.weights**2).sum() + (found.probs**3).sum(), found

    gradient, found = jax.jit(jax.grad(loss, has_aux=True))(logits)
    assert np.isfinite(found.weights).all()
    assert np.isfinite(found.probs).all()
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[1].any()
    assert not np.asarray(found.weights)[1].any()
    assert not np.asarray(found.probs)[1].any()
    weights, experts = np.asarray(found.weights)[0], np.asarray(found.experts)[0]
    assert not weights[experts != 3].any()
    assert sorted(set(experts)) == sorted(experts)
    if "correction_bias" not in options:
        assert experts[0] == 3
        assert weights[0] > 0


def test_top_k_routing_fewer_finite_logits_than_k_still_picks_k_experts(
    implementation,
):
    logits = jnp.array([[-INF, 2.0, -INF, -INF, 1.0, -INF]])
    found = tokumx.top_k_routing(logits, 4, implementation=implementation)
    np.testing.assert_array_equal(found.experts, [[1, 4, 0, 2]])
    # Never from a group that was left out, even where only -inf remains.
    found = tokumx.top_k_routing(
        logits, 3, num_groups=2, top_groups=1, implementation=implementation
    )
    np.testing.assert_array_equal(found.experts, [[1, 0, 2]])


@pytest.mark.parametrize("sign", [1, -1])
def test_top_k_routing_nan_comes_first_and_stays_in_its_row(sign, implementation):
    nan = np.copysign(np.nan, sign)
    logits = np.array([[0, nan, 2, 1], [0, 1, 2, 3]], np.float32)

    def loss(logits, score):
        found = tokumx.top_k_routing(
            logits, 2, score=score, implementation=implementation
        )
        return found.weights.sum(), found

    grad = jax.grad(loss, has_aux=True)
    gradient, found = grad(logits, "softmax")
    np.testing.assert_array_equal(found.experts, [[1, 2], [3, 2]])
    assert np.isnan(np.asarray(found.weights)[0]).all()
    assert np.isfinite(np.asarray(found.weights)[1]).all()
    assert np.isfinite(np.asarray(gradient)[1]).all()
    _, found = grad(logits, "sigmoid")
    np.testing.assert_array_equal(np.isnan(found.weights), [[True, False], [False] * 2])


@pytest.mark.parametrize("name", OPTIONS)
def test_top_k_routing_gradients_equal_difference_quotients(name):
    """Of one implementation: they share all but the choice, which has none."""
    num_experts, k, options = OPTIONS[name]
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        logits = jnp.asarray(rng.standard_normal((5, num_experts)))
        direction = rng.standard_normal(logits.shape)
        by_weight, by_prob = (
            rng.standard_normal((5, k)),
            rng.standard_normal(logits.shape),
        )

        @jax.jit
        def loss(logits):
            found = tokumx.top_k_routing(
                logits, k, **options, implementation="xla_rounds"
            )
            return (found.weights * by_weight).sum() + (found.probs * by_prob).sum()

        step = 1e-6 * direction
        quotient = (loss(logits + step) - loss(logits - step)) / 2e-6
        slope = (jax.grad(loss)(logits) * direction).sum()
        np.testing.assert_allclose(slope, quotient, rtol=2e-7, atol=1e-8)


def test_top_k_routing_correction_bias_moves_the_choice_only(implementation):
    logits = jnp.array([[3.0, 2.0, 1.0, 0.0]])
    bias = jnp.array([0.0, 0.0, 0.0, 5.0])

    def weights(bias):
        found = tokumx.top_k_routing(
            logits,
            2,
            score="sigmoid",
            correction_bias=bias,
            implementation=implementation,
        )
        return found.weights.sum(), found

    gradient, found = jax.grad(weights, has_aux=True)(bias)
    np.testing.assert_array_equal(found.experts, [[3, 0]])
    np.testing.assert_allclose(
        found.weights, jax.nn.sigmoid(logits[:, [3, 0]]), rtol=1e-6
    )
    assert not np.asarray(gradient).any()


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"])
def test_top_k_routing_agrees_with_torch(name, implementation, assert_close):
    torch = pytest.importorskip("torch")
    num_experts, k, options = OPTIONS[name]
    logits = np.random.default_rng(2).standard_normal((17, num_experts), np.float32)
    x = torch.tensor(logits, requires_grad=True)
    if name == "deepseek-v3":
        scores = x.sigmoid()
        values = scores + torch.tensor(options["correction_bias"])
        groups = values.view(17, 8, -1)
        best = groups.topk(2, -1)[0].sum(-1).topk(4, -1)[1]
        keep = torch.zeros(17, 8).scatter_(1, best, 1).bool()[..., None]
        values = groups.masked_fill(~keep, -torch.inf).view(17, -1)
        weights = scores.gather(1, values.topk(k)[1])
        weights = weights / weights.sum(-1, keepdim=True) * 2.5
    elif name == "mixtral-8x7b":
        weights = x.softmax(-1).topk(k)[0]
        weights = weights / weights.sum(-1, keepdim=True)
    else:
        weights = x.topk(k)[0].softmax(-1)
    (weights**2).sum().backward()

    def loss(logits):
        found = tokumx.top_k_routing(
            logits, k, **options, implementation=implementation
        )
        return (found.weights**2).sum(), found.weights

    gradient, found = jax.grad(loss, has_aux=True)(logits)
    assert_close(found, weights.detach().numpy())
    assert_close(gradient, x.grad.numpy())


def permuted_by_loops(x, experts, num_experts):
    order = [
        (t, j)
        for e in range(num_experts)
        for t in range(experts.shape[0])
        for j in range(experts.shape[1])
        if experts[t, j] == e
    ]
    return np.array([x[t] for t, _ in order]), order


@hypothesis.given(
    tokens=st.sampled_from([1, 2, 7, 40]),
    k=st.sampled_from([1, 2, 5]),
    num_experts=st.sampled_from([1, 3, 64]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.differing_executors],
)
def test_moe_permute_sorts_by_expert_and_back(tokens, k, num_experts, seed):
    """Choices are drawn with repetition: a token may name an expert twice."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, 3), np.float32)
    experts = rng.integers(0, num_experts, (tokens, k), np.int32)
    weights = rng.standard_normal((tokens, k), np.float32)
    rows, order = permuted_by_loops(x, experts, num_experts)
    for mover in ("xla", "xla_gather"):
        found = tokumx.moe_permute(x, experts, num_experts, implementation=mover)
        np.testing.assert_array_equal(found.rows, rows)
        sizes = np.bincount(experts.ravel(), minlength=num_experts)
        np.testing.assert_array_equal(found.group_sizes, sizes)
        source, target = found.permutation
        np.testing.assert_array_equal(source, [t * k + j for t, j in order])
        np.testing.assert_array_equal(
            np.asarray(target).ravel()[np.asarray(source)], np.arange(tokens * k)
        )
        out = tokumx.moe_unpermute(
            found.rows, found.permutation, weights, implementation=mover
        )
        np.testing.assert_allclose(out, x * weights.sum(1)[:, None], atol=1e-5)


def test_moe_permute_and_unpermute_gradients_equal_the_dense_ones(mover, assert_close):
    """Against one-hot products, with every expert named several times."""
    rng = np.random.default_rng(3)
    t, k, e, d = 12, 3, 4, 5
    x, weights = rng.standard_normal((t, d)), rng.standard_normal((t, k))
    experts = rng.integers(0, e, (t, k), np.int32)
    factor = rng.standard_normal((e, d))
    one_hot = np.eye(e)[experts]  # [T, K, E]

    def ragged(x, weights, factor):
        found = tokumx.moe_permute(x, experts, e, implementation=mover)
        group = jnp.repeat(jnp.arange(e), found.group_sizes, total_repeat_length=t * k)
        rows = jnp.tanh(found.rows * factor[group])
        return jnp.sin(
            tokumx.moe_unpermute(rows, found.permutation, weights, implementation=mover)
        ).sum()

    def dense(x, weights, factor):
        every = jnp.tanh(x[:, None] * factor)  # [T, E, D]
        return jnp.sin(jnp.einsum("tk,tke,ted->td", weights, one_hot, every)).sum()

    with jax.enable_x64(True):
        found = jax.jit(jax.grad(ragged, (0, 1, 2)))(x, weights, factor)
        expected = jax.grad(dense, (0, 1, 2))(x, weights, factor)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, 1e-12)


def test_moe_permute_choices_out_of_range_are_in_no_group(mover):
    experts = jnp.array([[0, -1], [9, 1], [1, 3]], jnp.int32)
    found = tokumx.moe_permute(jnp.eye(3), experts, 3, implementation=mover)
    np.testing.assert_array_equal(found.group_sizes, [1, 2, 0])
    np.testing.assert_array_equal(found.permutation.source[:3], [0, 3, 4])
    np.testing.assert_array_equal(np.sort(found.permutation.source), np.arange(6))


def test_moe_unpermute_rounds_once(mover):
    """bf16 rows that cancel: a sum in bf16 would lose the small one."""
    rows = jnp.array([[256.0], [1.0], [-256.0]], jnp.bfloat16)
    found = tokumx.moe_permute(jnp.zeros((1, 1)), np.zeros((1, 3), np.int32), 1)
    out = tokumx.moe_unpermute(
        rows, found.permutation, jnp.ones((1, 3)), implementation=mover
    )
    assert out.dtype == jnp.bfloat16
    assert float(out[0, 0]) == 1.0


def test_moe_permute_of_no_tokens(mover):
    found = tokumx.moe_permute(
        jnp.zeros((0, 4)), jnp.zeros((0, 2), jnp.int32), 3, implementation=mover
    )
    assert found.rows.shape == (0, 4)
    assert found.group_sizes.tolist() == [0, 0, 0]
    out = tokumx.moe_unpermute(
        found.rows, found.permutation, jnp.zeros((0, 2)), implementation=mover
    )
    assert out.shape == (0, 4)


def test_load_balance_loss_follows_the_definition():
    rng = np.random.default_rng(4)
    probs = rng.dirichlet(np.ones(6), (3, 7)).astype(np.float32)
    experts = rng.integers(0, 6, (3, 7, 2), np.int32)
    keep = rng.random((3, 7)) < 0.7
    share = np.bincount(experts[keep].ravel(), minlength=6) / experts[keep].size
    expected = 6 * (share * probs[keep].mean(0)).sum()
    found = tokumx.load_balance_loss(probs, experts, token_mask=keep)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    none = tokumx.load_balance_loss(probs, experts, token_mask=np.zeros_like(keep))
    assert float(none) == 0.0


def test_load_balance_loss_is_one_for_even_use_and_e_for_one_expert():
    even = np.arange(12, dtype=np.int32).reshape(6, 2) % 4
    flat = np.full((6, 4), 0.25, np.float32)
    np.testing.assert_allclose(tokumx.load_balance_loss(flat, even), 1.0, rtol=1e-6)
    one = np.tile(np.eye(4, dtype=np.float32)[2], (6, 1))
    np.testing.assert_allclose(
        tokumx.load_balance_loss(one, np.full((6, 1), 2, np.int32)), 4.0, rtol=1e-6
    )


def test_router_z_loss_follows_the_definition():
    logits = np.random.default_rng(5).standard_normal((4, 3, 6), np.float32)
    expected = np.log(np.exp(logits).sum(-1)) ** 2
    np.testing.assert_allclose(tokumx.router_z_loss(logits), expected.mean(), rtol=1e-6)
    keep = np.arange(12).reshape(4, 3) % 3 > 0
    found = tokumx.router_z_loss(logits, token_mask=keep)
    np.testing.assert_allclose(found, expected[keep].mean(), rtol=1e-6)


def test_losses_ignore_what_is_left_out_even_if_it_is_nan():
    logits = jnp.array([[1.0, 2.0], [jnp.nan, 0.0], [-INF, -INF]])
    keep = jnp.array([True, False, True])
    value, gradient = jax.value_and_grad(tokumx.router_z_loss)(logits, token_mask=keep)
    expected = np.log(np.exp([1.0, 2.0]).sum()) ** 2 / 2
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[1:].any()
