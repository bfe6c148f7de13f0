"""Representative operands for calls, for tuning and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec

_T, _D, _E, _K = 2048, 2048, 128, 8
_QWEN3_MOE = {
    "k": _K,
    "score": "softmax",
    "normalize": "before",
    "renormalize": True,
    "scale": 1.0,
    "num_groups": None,
    "top_groups": None,
}


def routing_examples(dtype: str) -> list[CallSpec]:
    """A prefill of Qwen3-MoE."""
    logits = jax.ShapeDtypeStruct((_T, _E), dtype)
    return [CallSpec.of("top_k_routing", {"logits": logits}, _QWEN3_MOE)]


def permute_examples(dtype: str) -> list[CallSpec]:
    arrays = {"x": jax.ShapeDtypeStruct((_T, _D), dtype), **_permutation()}
    return [CallSpec.of("moe_permute", arrays, {})]


def unpermute_examples(dtype: str) -> list[CallSpec]:
    arrays = {
        "rows": jax.ShapeDtypeStruct((_T * _K, _D), dtype),
        "weights": jax.ShapeDtypeStruct((_T, _K), jnp.float32),
        **_permutation(),
    }
    return [CallSpec.of("moe_unpermute", arrays, {})]


def _permutation() -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "source": jax.ShapeDtypeStruct((_T * _K,), jnp.int32),
        "target": jax.ShapeDtypeStruct((_T, _K), jnp.int32),
    }


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Normal floats; the order of the rows is random."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, jax.Array] = {}
    for name in call:
        spec = call[name]
        shape = tuple(spec.size(a) for a in range(spec.ndim))
        if name not in ("source", "target"):
            values = rng.standard_normal(shape, np.float32)
            arrays[name] = jnp.asarray(values, spec.dtype)
    if "target" in call:
        source = rng.permutation(call["source"].size(0)).astype(np.int32)
        shape = (call["target"].size(0), call["target"].size(1))
        arrays["source"] = jnp.asarray(source)
        arrays["target"] = jnp.asarray(np.argsort(source).reshape(shape), jnp.int32)
    return arrays
