"""Attention of mixed prefill and decode tokens over a paged cache."""

from tokumx.ops.ragged_paged_attention.ragged_paged_attention import (
    ragged_paged_attention,
)

__all__ = ["ragged_paged_attention"]
