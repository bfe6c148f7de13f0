"""The tokumx calls inside a function, and what was decided for them."""

from tokumx.capture.explain import Explanation, explain
from tokumx.capture.trace import TracedCall, trace_calls

__all__ = ["Explanation", "TracedCall", "explain", "trace_calls"]
