"""Curated, fast kernels for training and serving models."""

from tokumx.capture import Explanation, explain
from tokumx.contract import ArraySpec, CallSpec, Configs, DeviceSpec, use_device
from tokumx.debug import debug_checks
from tokumx.errors import TuningFileWarning, UnsupportedError
from tokumx.ops.attention import dot_product_attention
from tokumx.ops.ragged_paged_attention import ragged_paged_attention
from tokumx.tuning import TuneSettings, TuningResult, autotune

__all__ = [
    "ArraySpec",
    "CallSpec",
    "Configs",
    "DeviceSpec",
    "Explanation",
    "TuneSettings",
    "TuningFileWarning",
    "TuningResult",
    "UnsupportedError",
    "autotune",
    "debug_checks",
    "dot_product_attention",
    "explain",
    "ragged_paged_attention",
    "use_device",
]
