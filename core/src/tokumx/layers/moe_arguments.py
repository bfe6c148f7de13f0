"""Checks of the arguments of moe.

D width, F hidden width, E experts (of one device, where they are split).
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tokumx.contract import ArraySpec
from tokumx.pallas_lib.activations import ACTIVATIONS

_DTYPES = ("float32", "bfloat16", "float16", "float64")


def _fail(rule: str, got: Any, advice: str) -> ValueError:
    return ValueError(f"moe: {rule}; got {got}. {advice}")


def _check_name(argument: str, name: Any, names: Iterable[str], advice: str) -> None:
    names = list(names)
    if name in names:
        return
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    raise _fail(
        f"{argument} must be among {', '.join(map(repr, names))}",
        repr(name),
        f"Did you mean {close[0]!r}?" if close else advice,
    )


def check_activation(name: Any) -> None:
    names = (*ACTIVATIONS, "swiglu_oai")
    _check_name("activation", name, names, "It is applied to the gate.")


def check_exchange(name: Any, names: Iterable[str]) -> None:
    if name is not None:
        _check_name("exchange", name, names, "Pass None for the backend's best.")


def checked_input(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    if not x.ndim or x.dtype.name not in _DTYPES:
        raise _fail(
            f"x must be [..., D] of {', '.join(_DTYPES)}",
            f"x={ArraySpec.of(x)}",
            "Cast it to one of them.",
        )
    return x


def checked_experts(
    x: jax.Array, w_gate: Any, w_up: Any, w_down: Any, biases: Mapping[str, Any]
) -> dict[str, jax.Array | None]:
    """Weights and biases by name, checked against x and each other."""
    weights = {"w_gate": w_gate, "w_up": w_up, "w_down": w_down}
    weights = {n: jnp.asarray(w) for n, w in weights.items()}
    gate = weights["w_gate"]
    d = x.shape[-1]
    fits = (
        gate.ndim == 3
        and gate.shape[1] == d
        and weights["w_up"].shape == gate.shape
        and weights["w_down"].shape == (gate.shape[0], gate.shape[2], d)
        and all(w.dtype == x.dtype for w in weights.values())
    )
    if not fits:
        arrays = {"x": x, **weights}
        raise _fail(
            "w_gate and w_up must be [E, D, F] and w_down [E, F, D], in x's dtype",
            " ".join(f"{n}={ArraySpec.of(a)}" for n, a in arrays.items()),
            "Transpose weights that are [E, F, D]; cast weights to x's dtype.",
        )
    e, _, f = gate.shape
    checked: dict[str, jax.Array | None] = dict(weights)
    for name, bias in biases.items():
        width = d if name == "b_down" else f
        checked[name] = None if bias is None else _bias(name, bias, (e, width))
    return checked


def _bias(name: str, bias: Any, shape: tuple[int, int]) -> jax.Array:
    bias = jnp.asarray(bias)
    if bias.shape != shape or not jnp.issubdtype(bias.dtype, jnp.floating):
        raise _fail(
            f"{name} must be floating [E, {'D' if name == 'b_down' else 'F'}] = "
            f"{list(shape)}",
            f"{name}={ArraySpec.of(bias)}",
            "Pass one row for each expert.",
        )
    return bias


def check_router(
    x: jax.Array, logits: jax.Array, experts: int, axis_name: str | None
) -> None:
    """The logits are of these tokens, and of all devices' experts."""
    devices = 1 if axis_name is None else lax.axis_size(axis_name)
    if logits.shape == (*x.shape[:-1], devices * experts):
        return
    where = "" if axis_name is None else f" over {devices} devices of {axis_name!r}"
    raise _fail(
        "the router must give each token one logit for each of the "
        f"{devices * experts} experts{where}",
        f"x={ArraySpec.of(x)} logits={ArraySpec.of(logits)}",
        "Under axis_name each device holds its own experts, and the whole router.",
    )
