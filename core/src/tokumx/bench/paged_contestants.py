"""Who computes a decode step over a paged cache: tokumx, and the plain forms.

R sequences with one new token each, N query heads, K key heads, G = N // K,
H head dim, S keys a sequence has room for.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.bench.case import SUBJECT, Arrays, Contestant, InProcess
from tokumx.ops.ragged_paged_attention import ragged_paged_attention

GATHER = "gather+einsum"
REFERENCE = "xla"


def tokumx_paged(arrays: Arrays, implementation: str | None = None) -> jax.Array:
    """The public function, without the log-sum-exp."""
    given: dict[str, Any] = dict(arrays)
    out = ragged_paged_attention(**given, implementation=implementation)
    assert isinstance(out, jax.Array), "return_residual was not asked for"
    return out


def gather_einsum(arrays: Arrays) -> jax.Array:
    """A decode step as a model writes it when it uses no kernel.

    Every sequence's pages are gathered into a contiguous cache, then attended
    to, with logits and softmax in f32. Valid for one new token a sequence.
    """
    query, lengths = arrays["query"], arrays["seq_lens"]
    key, value = (_gathered(arrays, n) for n in ("key_cache", "value_cache"))
    r, n, h = query.shape
    s, k = key.shape[1:3]
    grouped = query.reshape(r, k, n // k, h)
    logits = jnp.einsum(
        "rkgh,rskh->rkgs", grouped, key, preferred_element_type=jnp.float32
    )
    visible = jnp.arange(s) < lengths[:, None]  # [R, S]
    logits = jnp.where(visible[:, None, None], logits * h**-0.5, -jnp.inf)
    weights = jax.nn.softmax(logits).astype(value.dtype)
    return jnp.einsum("rkgs,rskh->rkgh", weights, value).reshape(r, n, h)


def _gathered(arrays: Arrays, cache: str) -> jax.Array:
    """[R, S, K, H]."""
    pages = arrays[cache][arrays["page_table"]]  # [R, pages, page_size, K, H]
    r, count, page_size = pages.shape[:3]
    return pages.reshape(r, count * page_size, *pages.shape[3:])


def paged_contestants() -> Sequence[Contestant]:
    return (
        InProcess(SUBJECT, tokumx_paged),
        InProcess(GATHER, gather_einsum),
        InProcess(REFERENCE, lambda a: tokumx_paged(a, "xla")),
    )
