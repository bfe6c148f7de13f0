"""tokumx in MaxText: this release holds the supported version window only."""

from tokumx_maxtext.compat import check_version

__all__ = ["check_version"]
