"""Representative operands for a call, for tuning and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import ArraySpec, CallSpec

_SEGMENTS = 4
_PLAIN = {
    "scale": 0.125,
    "is_causal": True,
    "window": (None, None),
    "logits_soft_cap": None,
    "dropout_rate": 0.0,
}


def examples(dtype: str) -> list[CallSpec]:
    """A prefill and a decode step of grouped attention."""
    return [
        CallSpec.of(
            "dot_product_attention",
            {
                "query": jax.ShapeDtypeStruct((1, length, 32, 64), dtype),
                "key": jax.ShapeDtypeStruct((1, 4096, 8, 64), dtype),
                "value": jax.ShapeDtypeStruct((1, 4096, 8, 64), dtype),
            },
            _PLAIN,
        )
        for length in (4096, 1)
    ]


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Canonical operands: normal floats, full lengths, four packed segments,
    a mask that hides every tenth key, queries aligned with the last keys."""
    t, s = call["query"].size(1), call["key"].size(1)
    rng = np.random.default_rng(seed)
    return {n: jnp.asarray(_array(n, call[n], t, s, rng)) for n in call}


def _array(
    name: str, spec: ArraySpec, t: int, s: int, rng: np.random.Generator
) -> jax.Array | np.ndarray:
    shape = tuple(spec.size(a) for a in range(spec.ndim))
    if name == "mask":
        return rng.random(shape) >= 0.1
    if name in ("query_seq_lengths", "key_value_seq_lengths"):
        return np.full(shape, t if name.startswith("query") else s, np.int32)
    if name == "query_offset":
        return np.full(shape, max(s - t, 0), np.int32)
    if name.endswith("_segment_ids"):
        ids = np.arange(shape[1]) * _SEGMENTS // shape[1]
        return np.broadcast_to(ids.astype(np.int32), shape)
    if name.endswith("_positions"):
        return np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    if name == "dropout_heads":
        return np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    if name == "dropout_key":
        return rng.integers(0, 2**32, shape, np.uint32)
    return jnp.asarray(rng.standard_normal(shape, np.float32), spec.dtype)
