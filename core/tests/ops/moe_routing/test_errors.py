"""Bad input: one clear error, raised when the call is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokumx

LOGITS = jnp.zeros((4, 8))

# changed arguments -> the message after "top_k_routing: "
WRONG = {
    "logits_dtype": (
        {"logits": jnp.zeros((4, 8), jnp.int32)},
        "logits must be [..., E] with E > 0, of float32, bfloat16, float16, float64; "
        "got logits=i32[4,8]. Pass one logit for each expert.",
    ),
    "logits_rank": (
        {"logits": 1.0},
        "logits must be [..., E] with E > 0, of float32, bfloat16, float16, float64; "
        "got logits=f32[]. Pass one logit for each expert.",
    ),
    "k_too_large": (
        {"k": 9},
        "k must be an int from 1 to the number of experts, 8; got 9. The experts are "
        "the last axis of logits.",
    ),
    "k_zero": (
        {"k": 0},
        "k must be an int from 1 to the number of experts, 8; got 0. The experts are "
        "the last axis of logits.",
    ),
    "score": (
        {"score": "sigmoids"},
        "score must be among 'softmax', 'sigmoid'; got 'sigmoids'. Did you mean "
        "'sigmoid'?",
    ),
    "normalize": (
        {"normalize": True},
        "normalize must be among 'before', 'after'; got True. The docstring says what "
        "each is.",
    ),
    "sigmoid_after": (
        {"score": "sigmoid", "normalize": "after"},
        "normalize='after' must go with score='softmax'; got score='sigmoid'. Pass "
        "renormalize=True to make the chosen scores sum to 1.",
    ),
    "bias": (
        {"correction_bias": jnp.zeros(4)},
        "correction_bias must be floating [E] = [8]; got correction_bias=f32[4]. Pass "
        "one number for each expert.",
    ),
    "scale": (
        {"scale": jnp.float32(2)},
        "scale must be a Python number; got ArrayImpl. Multiply the weights to vary "
        "it.",
    ),
    "groups_alone": (
        {"num_groups": 4},
        "num_groups and top_groups must be given together; got num_groups=4, "
        "top_groups=None. Leave out both to choose among all experts.",
    ),
    "groups": (
        {"num_groups": 3, "top_groups": 1},
        "num_groups must divide the number of experts, 8; got 3. Neighbouring experts "
        "form a group, all of one size.",
    ),
    "top_groups": (
        {"num_groups": 4, "top_groups": 5},
        "top_groups must be an int from 1 to num_groups, 4; got 5. It is how many "
        "groups a token may choose experts from.",
    ),
    "too_few_in_groups": (
        {"num_groups": 4, "top_groups": 1, "k": 3},
        "top_groups must hold at least k = 3 experts; got 1 groups of 2. Raise "
        "top_groups, or lower k.",
    ),
    "implementation": (
        {"implementation": "xla_round"},
        "implementation must be None or among xla_rounds, xla; got 'xla_round'. Did "
        "you mean 'xla_rounds'?",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_top_k_routing_refuses(name):
    changes, message = WRONG[name]
    with pytest.raises(ValueError) as error:
        tokumx.top_k_routing(**{"logits": LOGITS, "k": 2, **changes})
    assert str(error.value) == f"top_k_routing: {message}"


def test_top_k_routing_rounds_refuses_many_rounds():
    with pytest.raises(tokumx.UnsupportedError) as error:
        tokumx.top_k_routing(jnp.zeros((2, 64)), 33, implementation="xla_rounds")
    assert "xla_rounds: k and top_groups must be <= 32, got 33." in str(error.value)


X = jnp.zeros((4, 3))
EXPERTS = np.zeros((4, 2), np.int32)


@pytest.mark.parametrize(
    ("x", "experts", "num_experts", "message"),
    [
        (
            X[None],
            EXPERTS,
            2,
            "x must be [T, D] of float32, bfloat16, float16, float64, and experts "
            "int32 [T, K]; got x=f32[1,4,3] experts=i32[4,2]. Merge the leading axes "
            "into tokens.",
        ),
        (
            X,
            EXPERTS[:2],
            2,
            "x must be [T, D] of float32, bfloat16, float16, float64, and experts "
            "int32 [T, K]; got x=f32[4,3] experts=i32[2,2]. Merge the leading axes "
            "into tokens.",
        ),
        (
            X,
            EXPERTS.astype(np.float32),
            2,
            "x must be [T, D] of float32, bfloat16, float16, float64, and experts "
            "int32 [T, K]; got x=f32[4,3] experts=f32[4,2]. Merge the leading axes "
            "into tokens.",
        ),
        (
            X,
            EXPERTS,
            0,
            "num_experts must be an int > 0; got 0. It is the number of groups that "
            "the rows are sorted into.",
        ),
        (
            X,
            EXPERTS + 2,
            2,
            "experts must be in [0, 2); got 2. Count all experts of the layer in "
            "num_experts.",
        ),
    ],
)
def test_moe_permute_refuses(x, experts, num_experts, message):
    with pytest.raises(ValueError) as error:
        tokumx.moe_permute(x, experts, num_experts)
    assert str(error.value) == f"moe_permute: {message}"


def _run_to_the_end(fn, *arguments):
    jax.block_until_ready(jax.jit(fn)(*arguments))
    jax.effects_barrier()


def test_moe_permute_debug_checks_refuse_experts_out_of_range():
    message = (
        "moe_permute: experts must be in [0, 2); got -1. Count all experts of the "
        "layer in num_experts."
    )
    experts = jnp.full((4, 2), -1, jnp.int32)
    tokumx.moe_permute(X, experts, 2)
    with tokumx.debug_checks():
        with pytest.raises(ValueError) as error:
            tokumx.moe_permute(X, experts, 2)
        assert str(error.value) == message
        with pytest.raises(jax.errors.JaxRuntimeError) as error:
            _run_to_the_end(lambda e: tokumx.moe_permute(X, e, 2), experts)
        assert message in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": jnp.zeros((7, 3))},
        {"rows": jnp.zeros((8, 3), jnp.int32)},
        {"weights": jnp.zeros((4, 3))},
        {"weights": jnp.zeros((4, 2), jnp.int32)},
    ],
)
def test_moe_unpermute_refuses(changes):
    permutation = tokumx.moe_permute(X, EXPERTS, 2).permutation
    given = {"rows": jnp.zeros((8, 3)), "weights": jnp.zeros((4, 2)), **changes}
    with pytest.raises(ValueError) as error:
        tokumx.moe_unpermute(given["rows"], permutation, given["weights"])
    arrays = " ".join(f"{n}={tokumx.ArraySpec.of(a)}" for n, a in given.items())
    assert str(error.value) == (
        "moe_unpermute: rows must be [T * K, D] = [8, D] of float32, bfloat16, "
        f"float16, float64, and weights floating [T, K] = [4, 2]; got {arrays}. Pass "
        "what belongs to this permutation."
    )


def test_load_balance_loss_refuses():
    probs = jnp.zeros((4, 8))
    with pytest.raises(ValueError) as error:
        tokumx.load_balance_loss(probs, EXPERTS[:3])
    assert str(error.value) == (
        "load_balance_loss: probs [..., E] and experts [..., K] must have equal "
        "leading axes; got (4, 8) and (3, 2). Pass both of one Routing."
    )
    with pytest.raises(ValueError) as error:
        tokumx.load_balance_loss(probs, EXPERTS + 8)
    assert str(error.value) == (
        "load_balance_loss: experts must be in [0, 8); got 8. Count all experts of "
        "the layer in num_experts."
    )
    with pytest.raises(ValueError) as error:
        tokumx.load_balance_loss(probs, EXPERTS, token_mask=jnp.zeros(4))
    assert str(error.value) == (
        "load_balance_loss: token_mask must be bool [4]; got float32[4]. Pass True "
        "for each token that counts."
    )


def test_router_z_loss_refuses():
    with pytest.raises(ValueError) as error:
        tokumx.router_z_loss(jnp.zeros((4, 8), jnp.int32))
    assert str(error.value) == (
        "router_z_loss: logits must be [..., E] with E > 0, of float32, bfloat16, "
        "float16, float64; got logits=i32[4,8]. Pass one logit for each expert."
    )
