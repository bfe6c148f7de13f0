"""Checks of values, which cost a read of the array: off unless asked for.

Shapes and dtypes are always checked, when a call is traced. Values are
checked where that is free (Python and numpy inputs), and everywhere while
`debug_checks()` is active or TOKUMX_DEBUG=1 is set.
"""

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_forced: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "tokumx_debug", default=False
)


def is_on() -> bool:
    return _forced.get() or os.environ.get("TOKUMX_DEBUG", "0") not in ("", "0")


@contextlib.contextmanager
def debug_checks() -> Iterator[None]:
    """Checks values of every call made, or traced, inside.

    A compiled function checks when it runs, and fails with a JaxRuntimeError
    that holds the message. A function traced before stays unchecked.
    """
    token = _forced.set(True)
    try:
        yield
    finally:
        _forced.reset(token)


def is_concrete(x: Any) -> bool:
    """The values of x are known now: it is no tracer."""
    return not isinstance(x, Tracer)


def check_values(x: Any, find_error: Callable[[np.ndarray], ValueError | None]) -> None:
    """Raises what find_error returns for the values of x, if they are known or
    debug checks are on."""

    def check(values: Any) -> None:
        error = find_error(np.asarray(values))
        if error is not None:
            raise error

    if not is_concrete(x):
        if is_on():
            jax.debug.callback(check, x)
    elif is_on() or not isinstance(x, jax.Array):
        check(x)
