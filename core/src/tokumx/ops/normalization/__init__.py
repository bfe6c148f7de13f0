"""Normalization of rows, alone or with the residual sum before it."""

from tokumx.ops.normalization.normalization import layer_norm, rms_norm

__all__ = ["layer_norm", "rms_norm"]
