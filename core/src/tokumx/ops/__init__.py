"""One folder an op. Folders never import each other."""

from tokumx.contract import OpSpec
from tokumx.ops.attention.attention import ATTENTION
from tokumx.ops.gated_linear_unit.gated_linear_unit import (
    GATED_LINEAR_UNIT,
    GATED_LINEAR_UNIT_DOWN,
)
from tokumx.ops.linear_softmax_cross_entropy.linear_softmax_cross_entropy import (
    LINEAR_SOFTMAX_CROSS_ENTROPY,
)
from tokumx.ops.moe_routing.permutation import MOE_PERMUTE, MOE_UNPERMUTE
from tokumx.ops.moe_routing.top_k_routing import TOP_K_ROUTING
from tokumx.ops.normalization.normalization import (
    LAYER_NORM,
    LAYER_NORM_RESIDUAL,
    RMS_NORM,
    RMS_NORM_RESIDUAL,
)
from tokumx.ops.quantized_matmul.quantized_matmul import QUANTIZED_MATMUL
from tokumx.ops.ragged_dot.contracting import RAGGED_CONTRACTING_DOT
from tokumx.ops.ragged_dot.ragged_dot import RAGGED_DOT, RAGGED_DOT_QUANTIZED
from tokumx.ops.ragged_paged_attention.ragged_paged_attention import (
    RAGGED_PAGED_ATTENTION,
)
from tokumx.ops.rotary_embedding.rotary_embedding import ROTARY_EMBEDDING

OPS: dict[str, OpSpec] = {
    op.name: op
    for op in (
        ATTENTION,
        LINEAR_SOFTMAX_CROSS_ENTROPY,
        GATED_LINEAR_UNIT,
        GATED_LINEAR_UNIT_DOWN,
        LAYER_NORM,
        LAYER_NORM_RESIDUAL,
        MOE_PERMUTE,
        MOE_UNPERMUTE,
        QUANTIZED_MATMUL,
        RAGGED_CONTRACTING_DOT,
        RAGGED_DOT,
        RAGGED_DOT_QUANTIZED,
        RAGGED_PAGED_ATTENTION,
        RMS_NORM,
        RMS_NORM_RESIDUAL,
        ROTARY_EMBEDDING,
        TOP_K_ROUTING,
    )
}
