"""Attention over whole sequences."""

from tokumx.ops.attention.attention import dot_product_attention

__all__ = ["dot_product_attention"]
