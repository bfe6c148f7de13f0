"""Every refusal, word for word."""

import jax.numpy as jnp
import pytest

import tokumx

QUERY = jnp.zeros((2, 3, 4, 8))
TABLE = jnp.zeros((3, 4))
_QUERY_TEXT = "query=f32[2,3,4,8]"
CASES = {
    "query-2d": (
        {"query": jnp.zeros((3, 8))},
        "query must be [..., T, N, H] of float32, bfloat16, float16, float64; got "
        "query=f32[3,8]. Give it axes of positions, heads and head_dim.",
    ),
    "query-dtype": (
        {"query": QUERY.astype(jnp.int32)},
        "query must be [..., T, N, H] of float32, bfloat16, float16, float64; got "
        "query=i32[2,3,4,8]. Give it axes of positions, heads and head_dim.",
    ),
    "key": (
        {"key": jnp.zeros((2, 5, 1, 8))},
        f"key must be as query but for the number of heads; got {_QUERY_TEXT} "
        "key=f32[2,5,1,8]. Rotate them in two calls if their positions differ.",
    ),
    "positions-shape": (
        {"positions": jnp.arange(4)},
        "positions must have the axes of query before its heads, or their last; got "
        f"{_QUERY_TEXT} positions=i32[4]. T must be the same; other axes may be 1 or "
        "missing.",
    ),
    "positions-batch": (
        {"positions": jnp.zeros((3, 3), jnp.int32)},
        "positions must have the axes of query before its heads, or their last; got "
        f"{_QUERY_TEXT} positions=i32[3,3]. T must be the same; other axes may be 1 or "
        "missing.",
    ),
    "positions-dtype": (
        {"positions": jnp.zeros(3, bool)},
        "positions must be integers or floating, [..., T]; got positions=bool[3]. "
        "Pass [T] or [B, T].",
    ),
    "tables-and-theta": (
        {"tables": (TABLE, TABLE), "theta": 1e4, "positions": jnp.arange(3)},
        "tables take the place of positions, rotary_dim, theta, scaling and "
        "frequencies; got tables and positions, theta. Pass one or the other.",
    ),
    "tables-kind": (
        {"tables": TABLE},
        "tables must be a RotaryTables, or a pair of cos and sin; got ArrayImpl. Make "
        "them with tokumx.rotary_tables.",
    ),
    "tables-shapes": (
        {"tables": (TABLE, TABLE[:, :2])},
        "cos and sin must be floating and of one shape; got cos=f32[3,4] sin=f32[3,2]."
        " Make them with tokumx.rotary_tables.",
    ),
    "tables-positions": (
        {"tables": (TABLE[:2], TABLE[:2])},
        "tables must have the axes of query before its heads, or their last; got "
        f"{_QUERY_TEXT} cos=f32[2,4] sin=f32[2,4]. T must be the same; other axes may "
        "be 1 or missing.",
    ),
    "rotary-dim-odd": (
        {"rotary_dim": 5},
        "rotary_dim must be an even number > 0; got 5. Numbers are rotated in pairs.",
    ),
    "rotary-dim-large": (
        {"rotary_dim": 10},
        "no more than head_dim numbers of a head can be rotated; got rotary_dim=10 "
        f"{_QUERY_TEXT}. The rest of a head is passed on as it is.",
    ),
    "theta": (
        {"theta": 0.5},
        "theta must be a Python number > 1; got 0.5. Models have 10000 or more.",
    ),
    "scaling": (
        {"scaling": "yarn"},
        "scaling must be None, a LinearScaling, Llama3Scaling or YarnScaling; got str. "
        "Pass frequencies= for another.",
    ),
    "frequencies": (
        {"frequencies": jnp.ones(3)},
        "frequencies must be floating, [rotary_dim / 2] = [4]; got "
        "frequencies=f32[3]. Give each pair its own.",
    ),
    "frequencies-and-scaling": (
        {"frequencies": jnp.ones(4), "scaling": tokumx.LinearScaling(2.0)},
        "frequencies and scaling exclude each other; got scaling=LinearScaling. Scale "
        "the frequencies yourself.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rotary_embedding_refuses_in_these_words(case):
    given, text = CASES[case]
    with pytest.raises(ValueError) as error:
        tokumx.rotary_embedding(**{"query": QUERY, **given})
    assert str(error.value) == f"rotary_embedding: {text}"


def test_rotary_tables_refuse_a_narrow_dtype():
    with pytest.raises(ValueError) as error:
        tokumx.rotary_tables(jnp.arange(3), 8, dtype=jnp.bfloat16)
    assert str(error.value) == (
        "rotary_embedding: tables must be of float32, float64; got bfloat16. The "
        "rotation rounds once, at its end."
    )


SCALINGS = {
    "linear": (
        lambda: tokumx.LinearScaling(0),
        "LinearScaling: factor must be a positive number; got 0. See its docstring for "
        "what it stands for.",
    ),
    "llama3": (
        lambda: tokumx.Llama3Scaling(low_freq_factor=4.0),
        "Llama3Scaling: low_freq_factor must be less than high_freq_factor; got 4.0 "
        "and 4.0. Llama 3.1 has 1 and 4.",
    ),
    "yarn": (
        lambda: tokumx.YarnScaling(4.0, 4096, beta_slow=64.0),
        "YarnScaling: beta_slow must be less than beta_fast; got 64.0 and 32.0. YaRN "
        "has 1 and 32.",
    ),
    "yarn-none": (
        lambda: tokumx.YarnScaling(4.0, None),  # type: ignore[arg-type]
        "YarnScaling: original_max_position must be a positive number; got None. See "
        "its docstring for what it stands for.",
    ),
}


@pytest.mark.parametrize("case", SCALINGS)
def test_scaling_refuses_in_these_words(case):
    make, text = SCALINGS[case]
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == text
