"""One folder an op. Folders never import each other."""

from tokumx.contract import OpSpec
from tokumx.ops.attention.attention import ATTENTION

OPS: dict[str, OpSpec] = {op.name: op for op in (ATTENTION,)}
