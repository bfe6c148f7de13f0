"""Chooses an implementation for each call and runs it."""

from tokumx.dispatch.decision import Decision, recall
from tokumx.dispatch.run import call_op
from tokumx.dispatch.select import Preference, decide

__all__ = ["Decision", "Preference", "call_op", "decide", "recall"]
