"""The `tokumx` command."""

from tokumx.cli.app import main

__all__ = ["main"]
