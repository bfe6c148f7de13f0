"""Representative operands for calls, for tuning and benchmarks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec

# The first product of an expert of Qwen3-MoE 30B-A3B, for 2048 tokens.
_M, _K, _N, _G = 2048 * 8, 2048, 768, 128


def dot_examples(dtype: str) -> list[CallSpec]:
    return [_call("ragged_dot", dtype, (_G, _K, _N))]


def quantized_examples(dtype: str) -> list[CallSpec]:
    """The same with int8 weights, a scale for each column."""
    wide = jnp.promote_types(dtype, jnp.float32)
    plain = _call("ragged_dot_quantized", dtype, (_G, _K, _N))
    arrays: dict[str, Any] = {n: plain[n].to_jax() for n in plain if n != "rhs"}
    arrays["values"] = jax.ShapeDtypeStruct((1, _G, _K, _N), jnp.int8)
    arrays["scales"] = jax.ShapeDtypeStruct((1, _G, 1, _N), wide)
    options = {"out_dtype": dtype, "qtype": "int8", "is_packed": False}
    return [CallSpec.of("ragged_dot_quantized", arrays, options)]


def contracting_examples(dtype: str) -> list[CallSpec]:
    return [_call("ragged_contracting_dot", dtype, (_M, _N))]


def _call(op: str, dtype: str, rhs: tuple[int, ...]) -> CallSpec:
    arrays: dict[str, Any] = {
        "lhs": jax.ShapeDtypeStruct((1, _M, _K), dtype),
        "rhs": jax.ShapeDtypeStruct((1, *rhs), dtype),
        "group_sizes": jax.ShapeDtypeStruct((1, _G), jnp.int32),
        "group_ids": jax.ShapeDtypeStruct((1, _G), jnp.int32),
    }
    return CallSpec.of(op, arrays, {"out_dtype": dtype})


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Normal floats; random group sizes, of which some are 0, use all rows."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, jax.Array] = {}
    for name in call:
        spec = call[name]
        shape = tuple(spec.size(a) for a in range(spec.ndim))
        if name == "group_sizes":
            values = random_sizes(rng, call["lhs"].size(1), shape[1])[None]
        elif name == "group_ids":
            values = np.arange(shape[1])[None]
        elif name == "bias_owner":
            values = (np.arange(shape[1]) == 0)[None]
        elif name == "values":
            values = rng.integers(0, 100, shape)
        elif name == "zero_points":
            values = np.zeros(shape)
        else:
            values = rng.standard_normal(shape, np.float32)
            values = abs(values) / 64 if name == "scales" else values
        arrays[name] = jnp.asarray(values, spec.dtype)
    return arrays


def random_sizes(rng: np.random.Generator, rows: int, groups: int) -> np.ndarray:
    """[groups] int32 with the sum `rows`: each row chooses its group, and popular
    groups are twice as likely as the mean."""
    likely = rng.dirichlet(np.full(groups, 4.0)) if groups else np.zeros(0)
    return rng.multinomial(rows, likely).astype(np.int32)
