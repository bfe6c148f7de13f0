"""Gated linear units: SwiGLU, GeGLU and their kin, with the down projection."""

from tokumx.ops.gated_linear_unit.gated_linear_unit import gated_linear_unit

__all__ = ["gated_linear_unit"]
