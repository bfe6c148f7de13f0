"""Bad input: one clear error, raised when the call is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx

X, WEIGHT = jnp.zeros((4, 3)), jnp.zeros((3, 5))
LABELS = np.array([0, 1, 4, -100], np.int32)
GIVEN = {"x": X, "weight": WEIGHT, "labels": LABELS}
SHAPES = "A weight of the other layout needs weight_layout='vd', not a transposition."

# changed arguments -> the message after "linear_softmax_cross_entropy: "
WRONG = {
    "reduction": (
        {"reduction": "means"},
        "reduction must be among 'mean', 'sum', 'none'; got 'means'. Did you mean "
        "'mean'?",
    ),
    "reduction_none": (
        {"reduction": None},
        "reduction must be among 'mean', 'sum', 'none'; got None. Did you mean 'none'?",
    ),
    "weight_layout": (
        {"weight_layout": "xy"},
        "weight_layout must be among 'dv', 'vd'; got 'xy'. The docstring says what "
        "each is.",
    ),
    "dtype": (
        {"weight": jnp.zeros((3, 5), jnp.int8)},
        "x and weight must be of float32, bfloat16, float16, float64; got x=f32[4,3] "
        "weight=i8[3,5]. Cast them, or dequantize the weight.",
    ),
    "width": (
        {"weight": jnp.zeros((5, 3))},
        "x must be [..., D] and weight [D, V] with D, V > 0, for weight_layout='dv'; "
        f"got x=f32[4,3] weight=f32[5,3]. {SHAPES}",
    ),
    "no_words": (
        {"weight": jnp.zeros((3, 0))},
        "x must be [..., D] and weight [D, V] with D, V > 0, for weight_layout='dv'; "
        f"got x=f32[4,3] weight=f32[3,0]. {SHAPES}",
    ),
    "labels_dtype": (
        {"labels": jnp.zeros(4)},
        "labels must be integers of x's shape without the last axis, [4]; got "
        "labels=f32[4]. Pass the index of one word for each token.",
    ),
    "labels_shape": (
        {"labels": np.zeros((4, 1), np.int32)},
        "labels must be integers of x's shape without the last axis, [4]; got "
        "labels=i32[4,1]. Pass the index of one word for each token.",
    ),
    "labels_values": (
        {"labels": np.array([0, 1, 5, -100], np.int32)},
        "labels must be in [0, 5), or ignore_index = -100; got 5. Give tokens without "
        "a label ignore_index.",
    ),
    "ignore_index": (
        {"ignore_index": None},
        "ignore_index must be an int; got None. It is the label of tokens that do not "
        "count.",
    ),
    "bias": (
        {"bias": jnp.zeros(4)},
        "bias must be floating [V] = [5]; got bias=f32[4]. Pass one number for each "
        "word of weight.",
    ),
    "loss_weights": (
        {"loss_weights": np.ones(4, bool)},
        "loss_weights must be floating, of labels' shape [4]; got "
        "loss_weights=bool[4]. Pass one number for each token.",
    ),
    "label_smoothing": (
        {"label_smoothing": 1.0},
        "label_smoothing must be a Python number in [0, 1); got 1.0. It is part of the "
        "program.",
    ),
    "z_loss": (
        {"z_loss": jnp.float32(1)},
        "z_loss must be a Python number >= 0; got ArrayImpl. It is part of the "
        "program.",
    ),
    "temperature": (
        {"temperature": 0.0},
        "temperature must be a Python number > 0; got 0.0. It is part of the program.",
    ),
    "logits_soft_cap": (
        {"logits_soft_cap": -1.0},
        "logits_soft_cap must be a Python number > 0, or None; got -1.0. It is part of "
        "the program.",
    ),
    "implementation": (
        {"implementation": "xla_block"},
        "implementation must be None or among xla_blocked, xla; got 'xla_block'. Did "
        "you mean 'xla_blocked'?",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_cross_entropy_refuses(name):
    changes, message = WRONG[name]
    with pytest.raises(ValueError) as error:
        tokumx.linear_softmax_cross_entropy(**{**GIVEN, **changes})
    assert str(error.value) == f"linear_softmax_cross_entropy: {message}"


def test_log_probs_name_themselves_in_errors():
    with pytest.raises(ValueError) as error:
        tokumx.linear_token_log_probs(X, WEIGHT, LABELS, temperature=-1)
    assert str(error.value) == (
        "linear_token_log_probs: temperature must be a Python number > 0; got -1. It "
        "is part of the program."
    )


@pytest.mark.parametrize(
    "fn", [tokumx.linear_softmax_cross_entropy, tokumx.linear_token_log_probs]
)
def test_cross_entropy_debug_checks_refuse_labels_out_of_range(fn):
    labels = jnp.array([0, 1, 7, -100])
    message = (
        f"{fn.__name__}: labels must be in [0, 5), or ignore_index = -100; got 7. Give "
        "tokens without a label ignore_index."
    )
    fn(X, WEIGHT, labels)
    with tokumx.debug_checks():
        with pytest.raises(ValueError) as error:
            fn(X, WEIGHT, labels)
        assert str(error.value) == message
        with pytest.raises(jax.errors.JaxRuntimeError) as error:
            _run_compiled(lambda y: fn(X, WEIGHT, y), labels)
        assert message in str(error.value)


def _run_compiled(fn, *args):
    """Until its effects, the checks of values, are over."""
    jax.block_until_ready(jax.jit(fn)(*args))
    jax.effects_barrier()


def test_cross_entropy_blocked_refuses_symbolic_sizes():
    (tokens,) = jax.export.symbolic_shape("tokens")
    shapes = (
        jax.ShapeDtypeStruct((tokens, 3), jnp.float32),
        jax.ShapeDtypeStruct((tokens,), jnp.int32),
    )
    run = jax.jit(
        lambda x, labels: tokumx.linear_softmax_cross_entropy(
            x, WEIGHT, labels, implementation="xla_blocked"
        )
    )
    with pytest.raises(tokumx.UnsupportedError) as error:
        jax.export.export(run)(*shapes)
    assert "xla_blocked: tiles need static shapes." in str(error.value)
