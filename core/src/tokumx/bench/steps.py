"""The functions that are timed: a forward, or a forward with its gradients."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.bench.case import Arrays, Case
from tokumx.bench.records import Work

GRADIENT = "d_"  # before the array's name
Step = Callable[[Arrays, jax.Array], dict[str, jax.Array]]


def step_function(function: Callable[[Arrays], Any], case: Case, work: Work) -> Step:
    """(arrays, cotangent) -> {"out": ..., "d_query": ...}; not jitted.

    Several outputs, of one shape, are "out", "out1", ...; they get the same cotangent.
    The output is returned with the gradients, as a training step needs it:
    otherwise jax would drop the part of a forward that only it depends on.
    """

    def forward(arrays: Arrays, cotangent: jax.Array) -> dict[str, jax.Array]:
        del cotangent
        return _named(function(arrays))

    def forward_backward(arrays: Arrays, cotangent: jax.Array) -> dict[str, jax.Array]:
        wanted = {n: arrays[n] for n in case.differentiable}
        out, pull_back = jax.vjp(lambda some: function({**arrays, **some}), wanted)
        (gradients,) = pull_back(jax.tree.map(lambda _: cotangent, out))
        return _named(out) | {GRADIENT + n: g for n, g in gradients.items()}

    return forward if work == "forward" else forward_backward


def _named(out: Any) -> dict[str, jax.Array]:
    return {f"out{i or ''}": x for i, x in enumerate(jax.tree.leaves(out))}


def cast_floats(arrays: Mapping[str, Any], dtype: Any) -> dict[str, jax.Array]:
    """Floating arrays in another dtype, the others as they are."""
    return {
        n: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
        for n, x in arrays.items()
    }


def make_cotangent(case: Case, arrays: Arrays) -> jax.Array:
    """The same numbers for every contestant, exact in bfloat16."""
    out = jax.tree.leaves(jax.eval_shape(case.reference, dict(arrays)))[0]
    values = np.random.default_rng(1).standard_normal(out.shape, np.float32)
    return jnp.asarray(values.astype(jnp.bfloat16)).astype(out.dtype)
