"""Curated, fast kernels for training and serving models."""

from tokumx.capture import Explanation, explain
from tokumx.contract import ArraySpec, CallSpec, Configs, DeviceSpec, use_device
from tokumx.debug import debug_checks
from tokumx.errors import TuningFileWarning, UnsupportedError
from tokumx.layers import MoeAux, moe
from tokumx.ops.attention import dot_product_attention
from tokumx.ops.gated_linear_unit import gated_linear_unit
from tokumx.ops.linear_softmax_cross_entropy import (
    linear_softmax_cross_entropy,
    linear_token_log_probs,
)
from tokumx.ops.moe_routing import (
    Permutation,
    Permuted,
    Routing,
    load_balance_loss,
    moe_permute,
    moe_unpermute,
    router_z_loss,
    top_k_routing,
)
from tokumx.ops.normalization import layer_norm, rms_norm
from tokumx.ops.quantized_matmul import quantized_matmul
from tokumx.ops.ragged_dot import ragged_contracting_dot, ragged_dot
from tokumx.ops.ragged_paged_attention import ragged_paged_attention
from tokumx.ops.rotary_embedding import (
    LinearScaling,
    Llama3Scaling,
    RotaryTables,
    YarnScaling,
    rotary_embedding,
    rotary_tables,
)
from tokumx.quant import QArray, quantize
from tokumx.tuning import TuneSettings, TuningResult, autotune

__all__ = [
    "ArraySpec",
    "CallSpec",
    "Configs",
    "DeviceSpec",
    "Explanation",
    "LinearScaling",
    "Llama3Scaling",
    "MoeAux",
    "Permutation",
    "Permuted",
    "QArray",
    "RotaryTables",
    "Routing",
    "TuneSettings",
    "TuningFileWarning",
    "TuningResult",
    "UnsupportedError",
    "YarnScaling",
    "autotune",
    "debug_checks",
    "dot_product_attention",
    "explain",
    "gated_linear_unit",
    "layer_norm",
    "linear_softmax_cross_entropy",
    "linear_token_log_probs",
    "load_balance_loss",
    "moe",
    "moe_permute",
    "moe_unpermute",
    "quantize",
    "quantized_matmul",
    "ragged_contracting_dot",
    "ragged_dot",
    "ragged_paged_attention",
    "rms_norm",
    "rotary_embedding",
    "rotary_tables",
    "router_z_loss",
    "top_k_routing",
    "use_device",
]
