"""tokumx in Flax: attention for nnx and linen modules."""

from tokumx_flax.attention import dot_product_attention
from tokumx_flax.compat import check_version
from tokumx_flax.replace import Replacement, replace

check_version()

__all__ = ["Replacement", "check_version", "dot_product_attention", "replace"]
