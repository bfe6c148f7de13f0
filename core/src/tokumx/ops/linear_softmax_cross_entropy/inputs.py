"""Representative operands for a call, for tuning and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import ArraySpec, CallSpec

_PLAIN = {
    "weight_layout": "dv",
    "logits_soft_cap": None,
    "temperature": 1.0,
    "needs_sum": False,
}


def examples(dtype: str) -> list[CallSpec]:
    """A training step of Llama 3 8B's head on 4096 tokens."""
    arrays = {
        "x": jax.ShapeDtypeStruct((1, 1, 4096, 4096), dtype),
        "weight": jax.ShapeDtypeStruct((1, 4096, 128256), dtype),
        "labels": jax.ShapeDtypeStruct((1, 1, 4096), jnp.int32),
    }
    return [CallSpec.of("linear_softmax_cross_entropy", arrays, _PLAIN)]


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Normal floats, weights scaled for logits of variance 1, random labels."""
    rng = np.random.default_rng(seed)
    layout = call.option("weight_layout")
    width, words = (call["weight"].size(1 + layout.index(a)) for a in "dv")
    return {n: _array(n, call[n], width, words, rng) for n in call}


def _array(
    name: str, spec: ArraySpec, width: int, words: int, rng: np.random.Generator
) -> jax.Array:
    shape = tuple(spec.size(a) for a in range(spec.ndim))
    if name == "labels":
        return jnp.asarray(rng.integers(0, words, shape, np.int32))
    values = rng.standard_normal(shape, np.float32)
    if name == "weight":
        values *= width**-0.5
    return jnp.asarray(values, spec.dtype)
