"""Who multiplies rows by the matrix of their group: tokumx, and its peers."""

from collections.abc import Sequence

import jax
from jax import lax

from tokumx.bench.case import (
    SUBJECT,
    Absent,
    Arrays,
    Contestant,
    InProcess,
    InTorch,
)
from tokumx.ops.ragged_dot import ragged_dot

LAX, TOKAMAX, TORCH = "lax.ragged_dot", "tokamax", "torch"
REFERENCE = "xla"
_SLOW_TORCH_BF16 = "bf16 is emulated on a CPU without AVX-512: minutes a case"


def tokumx_ragged(arrays: Arrays, implementation: str | None = None) -> jax.Array:
    return ragged_dot(
        arrays["lhs"],
        arrays["rhs"],
        arrays["group_sizes"],
        implementation=implementation,
    )


def lax_ragged(arrays: Arrays) -> jax.Array:
    return lax.ragged_dot(arrays["lhs"], arrays["rhs"], arrays["group_sizes"])


def _tokamax() -> Contestant:
    try:
        import tokamax
    except ImportError as error:
        return Absent(TOKAMAX, f"not installed here: {error}")
    return InProcess(
        TOKAMAX,
        lambda a: tokamax.ragged_dot(a["lhs"], a["rhs"], a["group_sizes"]),
    )


def ragged_contestants(dtype: str) -> Sequence[Contestant]:
    is_bf16 = dtype == "bfloat16"
    return (
        InProcess(SUBJECT, tokumx_ragged),
        InProcess(LAX, lax_ragged),
        _tokamax(),
        InProcess(REFERENCE, lambda a: tokumx_ragged(a, REFERENCE)),
        Absent(TORCH, _SLOW_TORCH_BF16)
        if is_bf16
        else InTorch(TORCH, "ragged_dot", {}),
    )
