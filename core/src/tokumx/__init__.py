"""Curated, fast kernels for training and serving models."""

from tokumx.contract import ArraySpec, CallSpec, Configs, DeviceSpec, use_device
from tokumx.debug import debug_checks
from tokumx.errors import TuningFileWarning, UnsupportedError
from tokumx.ops.attention import dot_product_attention

__all__ = [
    "ArraySpec",
    "CallSpec",
    "Configs",
    "DeviceSpec",
    "TuningFileWarning",
    "UnsupportedError",
    "debug_checks",
    "dot_product_attention",
    "use_device",
]
