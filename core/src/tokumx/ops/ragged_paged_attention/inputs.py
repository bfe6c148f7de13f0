"""Representative operands for a call, for tuning and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec
from tokumx.ops.ragged_paged_attention.pages import page_size_and_heads


def examples(dtype: str) -> list[CallSpec]:
    """A decode step of sixteen sequences over a cache of grouped heads."""
    cache = jax.ShapeDtypeStruct((4096, 16, 8, 128), dtype)
    arrays = {
        "query": jax.ShapeDtypeStruct((16, 32, 128), dtype),
        "key_cache": cache,
        "value_cache": cache,
        "query_start_loc": jax.ShapeDtypeStruct((17,), jnp.int32),
        "seq_lens": jax.ShapeDtypeStruct((16,), jnp.int32),
        "page_table": jax.ShapeDtypeStruct((16, 256), jnp.int32),
    }
    options = {
        "scale": 0.125,
        "is_causal": True,
        "window": (None, None),
        "logits_soft_cap": None,
    }
    return [CallSpec.of("ragged_paged_attention", arrays, options)]


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Canonical operands: as many new tokens in each sequence, between half and
    all of the keys that the page table has room for, pages in random order."""
    rng = np.random.default_rng(seed)
    tables = _tables(call, rng)
    return {
        n: jnp.asarray(tables[n] if n in tables else _floats(call, n, rng))
        for n in call
    }


def _tables(call: CallSpec, rng: np.random.Generator) -> dict[str, np.ndarray]:
    tokens = call["query"].size(0)
    rows, width = call["page_table"].size(0), call["page_table"].size(1)
    num_pages = next(s.size(0) for n, s in call.arrays if "_cache" in n)
    capacity = width * page_size_and_heads(call)[0]
    new = np.full(rows, min(max(tokens // rows, 1), capacity))
    starts = np.minimum(np.concatenate([[0], np.cumsum(new)]), tokens)
    keys = rng.integers(np.maximum(new, capacity // 2), capacity, endpoint=True)
    pages = rng.permutation(max(num_pages, rows * width))[: rows * width] % num_pages
    return {
        "query_start_loc": starts.astype(np.int32),
        "seq_lens": keys.astype(np.int32),
        "page_table": pages.reshape(rows, width).astype(np.int32),
        "num_seqs": np.asarray(rows, np.int32),
    }


def _floats(call: CallSpec, name: str, rng: np.random.Generator) -> jax.Array:
    spec = call[name]
    shape = tuple(spec.size(a) for a in range(spec.ndim))
    if "_scale" in name:
        return jnp.asarray(rng.uniform(0.01, 0.02, shape), spec.dtype)
    values = rng.standard_normal(shape, np.float32)
    if spec.dtype == "int8":
        values = np.clip(values * 40, -127, 127)
    return jnp.asarray(values).astype(spec.dtype)
