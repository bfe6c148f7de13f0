"""tokumx in Tunix: this release holds the supported version window only."""

from tokumx_tunix.compat import check_version

__all__ = ["check_version"]
