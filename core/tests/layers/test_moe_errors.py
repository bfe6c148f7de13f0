"""Bad input: one clear error, raised when the call is traced."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

import tokumx

DEFAULTS = {
    "x": jnp.zeros((5, 4)),
    "router_weight": jnp.zeros((4, 6)),
    "w_gate": jnp.zeros((6, 4, 3)),
    "w_up": jnp.zeros((6, 4, 3)),
    "w_down": jnp.zeros((6, 3, 4)),
    "k": 2,
}

# changed arguments -> the message after "moe: "
WRONG = {
    "x": (
        {"x": jnp.zeros((5, 4), jnp.int8)},
        "x must be [..., D] of float32, bfloat16, float16, float64; got x=i8[5,4]. "
        "Cast it to one of them.",
    ),
    "activation": (
        {"activation": "silus"},
        "activation must be among 'silu', 'gelu', 'gelu_tanh', 'relu', 'sigmoid', "
        "'swiglu_oai'; got 'silus'. Did you mean 'silu'?",
    ),
    "exchange": (
        {"exchange": "gather"},
        "exchange must be among 'all_gather', 'ragged_all_to_all'; got 'gather'. Did "
        "you mean 'all_gather'?",
    ),
    "weights": (
        {"w_down": jnp.zeros((6, 4, 3))},
        "w_gate and w_up must be [E, D, F] and w_down [E, F, D], in x's dtype; got "
        "x=f32[5,4] w_gate=f32[6,4,3] w_up=f32[6,4,3] w_down=f32[6,4,3]. Transpose "
        "weights that are [E, F, D]; cast weights to x's dtype.",
    ),
    "weights_dtype": (
        {"w_up": jnp.zeros((6, 4, 3), jnp.bfloat16)},
        "w_gate and w_up must be [E, D, F] and w_down [E, F, D], in x's dtype; got "
        "x=f32[5,4] w_gate=f32[6,4,3] w_up=bf16[6,4,3] w_down=f32[6,3,4]. Transpose "
        "weights that are [E, F, D]; cast weights to x's dtype.",
    ),
    "bias": (
        {"b_up": jnp.zeros((6, 4))},
        "b_up must be floating [E, F] = [6, 3]; got b_up=f32[6,4]. Pass one row for "
        "each expert.",
    ),
    "down_bias": (
        {"b_down": jnp.zeros(4)},
        "b_down must be floating [E, D] = [6, 4]; got b_down=f32[4]. Pass one row for "
        "each expert.",
    ),
    "no_router": (
        {"router_weight": None},
        "router_weight, with or without router_bias, or router_logits must be given; "
        "got none. Pass router_logits where the router is your own.",
    ),
    "two_routers": (
        {"router_logits": jnp.zeros((5, 6))},
        "router_weight, with or without router_bias, or router_logits must be given; "
        "got router_weight, router_logits. Pass router_logits where the router is "
        "your own.",
    ),
    "router_shape": (
        {"router_weight": jnp.zeros((6, 4))},
        "router_weight must be [D, E] with D = 4; got [6, 4]. Transpose a weight that "
        "is [E, D].",
    ),
    "router_experts": (
        {"router_weight": jnp.zeros((4, 8))},
        "the router must give each token one logit for each of the 6 experts; got "
        "x=f32[5,4] logits=f32[5,8]. Under axis_name each device holds its own "
        "experts, and the whole router.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_moe_refuses(name):
    changes, message = WRONG[name]
    with pytest.raises(ValueError) as error:
        tokumx.moe(**{**DEFAULTS, **changes})
    assert str(error.value) == f"moe: {message}"


def test_moe_refuses_more_choices_than_experts():
    with pytest.raises(ValueError) as error:
        tokumx.moe(**{**DEFAULTS, "k": 7})
    assert str(error.value) == (
        "top_k_routing: k must be an int from 1 to the number of experts, 6; got 7. "
        "The experts are the last axis of logits."
    )


def test_moe_refuses_a_router_of_one_device_under_axis_name():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("x")
    arrays = {n: a for n, a in DEFAULTS.items() if n != "k"}
    arrays["x"] = jnp.zeros((6, 4))
    specs = {n: PartitionSpec() if "router" in n else split for n in arrays}
    arrays["router_weight"] = jnp.zeros((4, 3))
    run = functools.partial(tokumx.moe, k=2, axis_name="x")
    with pytest.raises(ValueError) as error:
        jax.shard_map(
            lambda a: run(**a), mesh=mesh, in_specs=(specs,), out_specs=split
        )(arrays)
    assert str(error.value) == (
        "moe: the router must give each token one logit for each of the 6 experts over "
        "2 devices of 'x'; got x=f32[3,4] logits=f32[3,3]. Under axis_name each device "
        "holds its own experts, and the whole router."
    )
