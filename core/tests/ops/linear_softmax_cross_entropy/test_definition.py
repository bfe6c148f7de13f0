"""Against the definition, one token at a time, and against other libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokumx

OPTIONS = {
    "plain": {},
    "smoothing": {"label_smoothing": 0.2},
    "z_loss": {"z_loss": 0.01},
    "cap": {"logits_soft_cap": 3.0},
    "temperature": {"temperature": 0.5},
    "all": {
        "label_smoothing": 0.2,
        "z_loss": 0.01,
        "logits_soft_cap": 3.0,
        "temperature": 0.5,
    },
}


@pytest.mark.parametrize("option", OPTIONS)
def test_cross_entropy_follows_the_definition(
    option, how, operands, expected_losses, assert_close
):
    x, weight, labels, bias = operands(63, 9, 203)
    bias = bias.at[1::3].set(-jnp.inf)
    labels = np.where((labels >= 0) & (labels % 3 == 1), 0, labels)
    given = {"bias": bias, "reduction": "none", **OPTIONS[option], **how}
    expected = expected_losses(x, weight, labels, bias, **OPTIONS[option])
    run = jax.jit(lambda w: tokumx.linear_softmax_cross_entropy(x, w, labels, **given))
    assert_close(run(weight), expected)
    tied = jax.jit(
        lambda w: tokumx.linear_softmax_cross_entropy(
            x, w, labels, weight_layout="vd", **given
        )
    )
    assert_close(tied(weight.T), expected)


def test_cross_entropy_reductions(how, operands, expected_losses, assert_close):
    x, weight, labels, _ = operands(21, 4, 50)
    weights = np.random.default_rng(3).random(21).astype(np.float32)
    losses = expected_losses(x, weight, labels)
    counted = labels != -100

    def run(**options):
        return tokumx.linear_softmax_cross_entropy(x, weight, labels, **options, **how)

    assert_close(run(), losses.sum() / counted.sum())
    assert_close(run(reduction="sum"), losses.sum())
    assert_close(run(reduction="none", loss_weights=weights), losses * weights)
    weighted = (losses * weights).sum()
    assert_close(run(reduction="sum", loss_weights=weights), weighted)
    assert_close(run(loss_weights=weights), weighted / weights[counted].sum())


def plain_losses(x, weight, bias, labels, s=0.1, z_loss=1e-2, cap=4.0):
    """As a model writes it."""
    logits = cap * jnp.tanh((x @ weight + bias) / cap)
    log_probs = jax.nn.log_softmax(logits)
    index = jnp.maximum(labels, 0)[..., None]
    losses = -(1 - s) * jnp.take_along_axis(log_probs, index, -1)[..., 0]
    losses = losses - s * log_probs.mean(-1)
    losses = losses + z_loss * jax.nn.logsumexp(logits, axis=-1) ** 2
    return jnp.where(labels == -100, 0, losses)


def test_cross_entropy_gradients_under_any_cotangent(how, operands, assert_close):
    """Losses times something of either sign, zeros among it, and nonlinearly."""
    x, weight, labels, bias = operands((3, 21), 6, 203)
    factor = np.random.default_rng(5).standard_normal((3, 21)).astype(np.float32)
    factor[:, ::4] = 0

    def ours(x, weight, bias, loss_weights):
        return tokumx.linear_softmax_cross_entropy(
            x,
            weight,
            labels,
            bias=bias,
            loss_weights=loss_weights,
            label_smoothing=0.1,
            z_loss=1e-2,
            logits_soft_cap=4.0,
            reduction="none",
            **how,
        )

    def plain(x, weight, bias, loss_weights):
        return plain_losses(x, weight, bias, labels) * loss_weights

    def total(fn):
        def run(*arguments):
            losses = fn(*arguments)
            return (losses * factor + jnp.sin(losses)).sum()

        return jax.jit(jax.value_and_grad(run, (0, 1, 2, 3)))

    arguments = (x, weight, bias, 1 + factor)
    assert_close(total(ours)(*arguments), total(plain)(*arguments), 5e-6)


def test_log_probs_are_those_of_log_softmax_with_gradients(how, operands, assert_close):
    x, weight, labels, bias = operands(21, 6, 203)
    advantages = np.random.default_rng(5).standard_normal(21).astype(np.float32)

    def ours(x, weight, bias):
        return tokumx.linear_token_log_probs(
            x, weight, labels, bias=bias, temperature=0.7, **how
        )

    def plain(x, weight, bias):
        log_probs = jax.nn.log_softmax((x @ weight + bias) / 0.7)
        found = log_probs[jnp.arange(21), jnp.maximum(labels, 0)]
        return jnp.where(labels == -100, 0, found)

    def total(fn):
        run = lambda *a: (jnp.exp(fn(*a)) * advantages).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(run, (0, 1, 2)))

    arguments = (x, weight, bias)
    assert_close(jax.jit(ours)(*arguments), plain(*arguments))
    assert_close(total(ours)(*arguments), total(plain)(*arguments))


def test_cross_entropy_without_tokens_that_count_is_zero(
    how, operands, loss_and_gradients
):
    x, weight, labels, bias = operands(21, 6, 203)
    step = loss_and_gradients(z_loss=0.1, label_smoothing=0.1, **how)
    for ignored in (np.full_like(labels, -100), labels[:0]):
        loss, gradients = step(x[: ignored.size], weight, bias, ignored)
        assert loss == 0
        assert all((np.asarray(g) == 0).all() for g in gradients)


def test_cross_entropy_ignored_tokens_may_hold_anything(
    how, operands, loss_and_gradients, assert_close
):
    x, weight, labels, bias = operands(21, 6, 203)
    step = loss_and_gradients(z_loss=0.1, label_smoothing=0.1, **how)
    ignored = labels == -100
    expected = step(x, weight, bias, labels)
    bad = jnp.where(ignored[:, None], jnp.array([jnp.nan, jnp.inf] * 3), x)
    loss, (dx, dw, db) = step(bad, weight, bias, labels)
    assert_close((loss, (dx, dw, db)), expected)
    assert (np.asarray(dx)[ignored] == 0).all()


def test_cross_entropy_with_nearly_all_words_removed_has_no_nan(
    how, operands, loss_and_gradients, expected_losses, assert_close
):
    x, weight, labels, _ = operands(21, 6, 203)
    bias = jnp.full(203, -jnp.inf).at[jnp.array([7, 150])].set(jnp.array([0.5, -1.0]))
    labels = np.where(labels == -100, -100, np.where(labels % 2, 7, 150))
    options = {"label_smoothing": 0.1, "z_loss": 0.1, "logits_soft_cap": 5.0}
    loss, gradients = loss_and_gradients(**options, **how)(x, weight, bias, labels)
    expected = expected_losses(x, weight, labels, bias, **options)
    assert_close(loss, expected.sum() / (labels != -100).sum())
    assert all(np.isfinite(g).all() for g in gradients)
    removed = np.isneginf(bias)
    assert (np.asarray(gradients[1])[:, removed] == 0).all()
    assert (np.asarray(gradients[2])[removed] == 0).all()


@pytest.mark.parametrize("left", [0, 1])
def test_cross_entropy_of_a_removed_label_is_inf_with_finite_gradients(
    left, how, operands, loss_and_gradients
):
    """Also where all words are removed."""
    x, weight, _, _ = operands(21, 6, 203)
    bias = jnp.full(203, -jnp.inf).at[:left].set(0.0)
    labels = np.full(21, 9, np.int32)
    loss, gradients = loss_and_gradients(**how)(x, weight, bias, labels)
    assert loss == jnp.inf
    assert all(np.isfinite(g).all() for g in gradients)


def test_cross_entropy_of_a_label_that_is_no_word_is_nan(how, operands):
    x, weight, _, _ = operands(4, 3, 5)
    labels = jnp.array([0, 5, -1, -100])
    losses = tokumx.linear_softmax_cross_entropy(
        x, weight, labels, reduction="none", **how
    )
    assert np.isnan(losses).tolist() == [False, True, True, False]


def test_cross_entropy_ignore_index_may_be_a_word(how, operands, expected_losses):
    x, weight, labels, _ = operands(21, 3, 5)
    labels = np.maximum(labels, 0)
    losses = tokumx.linear_softmax_cross_entropy(
        x, weight, labels, ignore_index=0, reduction="none", **how
    )
    expected = expected_losses(x, weight, labels, ignore_index=0)
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    assert (np.asarray(losses)[labels == 0] == 0).all()


@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(0, 40),
    d=st.integers(1, 9),
    v=st.integers(1, 230),
    seed=st.integers(0, 99),
)
def test_cross_entropy_of_any_size(tokens, d, v, seed):
    from tokumx.ops.linear_softmax_cross_entropy import xla_blocked

    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((tokens, d)), rng.standard_normal((d, v))
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    labels = rng.integers(0, v, tokens, np.int32)
    config = xla_blocked.Config(block_rows=7, block_vocab=64, dot_dtype="float32")
    step = jax.value_and_grad(tokumx.linear_softmax_cross_entropy, (0, 1))
    found = step(x, weight, labels, config=config, implementation="xla_blocked")
    expected = step(x, weight, labels, implementation="xla")
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_cross_entropy_equals_optax(how, operands, assert_close):
    optax = pytest.importorskip("optax")
    x, weight, labels, _ = operands((2, 21), 6, 203)
    labels = np.maximum(labels, 0)

    def ours(x, weight):
        return tokumx.linear_softmax_cross_entropy(
            x, weight, labels, reduction="sum", **how
        )

    def theirs(x, weight):
        losses = optax.softmax_cross_entropy_with_integer_labels(x @ weight, labels)
        return losses.sum()

    step = lambda fn: jax.jit(jax.value_and_grad(fn, (0, 1)))(x, weight)  # noqa: E731
    assert_close(step(ours), step(theirs))


def test_cross_entropy_equals_tokamax(how, operands, assert_close):
    tokamax = pytest.importorskip("tokamax")
    x, weight, labels, _ = operands(21, 6, 203)
    labels = jnp.maximum(labels, 0)
    theirs = tokamax.linear_softmax_cross_entropy_loss(
        x, labels, weight, reduction="mean", implementation="xla"
    )
    ours = tokumx.linear_softmax_cross_entropy(x, weight, labels, **how)
    assert_close(ours, theirs)


def test_cross_entropy_equals_torch(how, operands, assert_close, loss_and_gradients):
    torch = pytest.importorskip("torch")
    x, weight, labels, bias = operands(21, 6, 203)
    tensors = [
        torch.tensor(np.asarray(a), requires_grad=True) for a in (x, weight, bias)
    ]
    loss = torch.nn.functional.cross_entropy(
        tensors[0] @ tensors[1] + tensors[2],
        torch.tensor(labels).long(),
        ignore_index=-100,
        label_smoothing=0.1,
    )
    loss.backward()
    expected = loss.item(), [t.grad.numpy() for t in tensors]
    found = loss_and_gradients(label_smoothing=0.1, **how)(x, weight, bias, labels)
    assert_close(found, expected)
