"""One folder an op. Folders never import each other."""

from tokumx.contract import OpSpec
from tokumx.ops.attention.attention import ATTENTION
from tokumx.ops.ragged_paged_attention.ragged_paged_attention import (
    RAGGED_PAGED_ATTENTION,
)

OPS: dict[str, OpSpec] = {op.name: op for op in (ATTENTION, RAGGED_PAGED_ATTENTION)}
