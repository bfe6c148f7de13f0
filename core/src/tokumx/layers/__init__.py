"""Composites of several ops."""

from tokumx.layers.moe import MoeAux, moe

__all__ = ["MoeAux", "moe"]
