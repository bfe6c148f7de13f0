"""Representative operands for a call, for tuning and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec
from tokumx.ops.gated_linear_unit.arguments import DOWN, GLU, glu_options

_BIASES = ("gate_bias", "up_bias")


def _examples(op: str, dtype: str) -> list[CallSpec]:
    """A prefill and a decode step, with weights apart."""
    weights = {"gate_weight": (1024, 2816), "up_weight": (1024, 2816)}
    if op == DOWN:
        weights["down_weight"] = (2816, 1024)
    return [
        CallSpec.of(
            op,
            {
                name: jax.ShapeDtypeStruct(shape, dtype)
                for name, shape in {"x": (rows, 1024), **weights}.items()
            },
            glu_options("silu", None, None),
        )
        for rows in (512, 1)
    ]


def examples(dtype: str) -> list[CallSpec]:
    return _examples(GLU, dtype)


def down_examples(dtype: str) -> list[CallSpec]:
    return _examples(DOWN, dtype)


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Normal floats; products keep a variance of about 1."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in call:
        spec = call[name]
        shape = tuple(spec.size(a) for a in range(spec.ndim))
        is_weight = name != "x" and name not in _BIASES
        scale = shape[0] ** -0.5 if is_weight else 1.0
        values = rng.standard_normal(shape, np.float32) * np.float32(scale)
        arrays[name] = jnp.asarray(values, spec.dtype)
    return arrays
