"""tokumx in vLLM: this release holds the supported version window only."""

from tokumx_vllm.compat import check_version

__all__ = ["check_version"]
