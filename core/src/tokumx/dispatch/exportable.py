"""Programs that leave this machine hold no custom calls.

A module that jax.export writes may be read by another release, or run on another
platform, where the native library is not. So a native kernel brings a portable
function with the same results, and which of the two is lowered is decided when
jax lowers: only then it is known whether for this process or for export.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir

Function = Callable[..., tuple[jax.Array, ...]]

_native_p = Primitive("tokumx_native")
_native_p.multiple_results = True


def exportable(native: Function, stand_in: Function) -> Function:
    """`native`, and `stand_in` in its place in a module for export.

    Both take the same arrays, and return as many of the same shapes and dtypes.
    """

    def run(*args: jax.Array) -> tuple[jax.Array, ...]:
        traced = jax.make_jaxpr(native)(*args)
        return tuple(_native_p.bind(*args, native=traced, stand_in=stand_in))

    return run


@_native_p.def_impl
def _run(*args: jax.Array, native: Any, stand_in: Function) -> Any:
    del stand_in
    return jaxpr_as_fun(native)(*args)


@_native_p.def_abstract_eval
def _result_types(*_: Any, native: Any, stand_in: Function) -> Any:
    del stand_in
    return native.out_avals


def _lower(ctx: Any, *args: Any, native: Any, stand_in: Function) -> Any:
    is_export = ctx.module_context.lowering_parameters.for_export
    chosen = stand_in if is_export else jaxpr_as_fun(native)
    return mlir.lower_fun(chosen, multiple_results=True)(ctx, *args)


mlir.register_lowering(_native_p, _lower)
