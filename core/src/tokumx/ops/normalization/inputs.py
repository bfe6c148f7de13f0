"""Representative operands for a call, for tuning and benchmarks."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec


def examples_of(op: str) -> Callable[[str], Sequence[CallSpec]]:
    """Rows of Llama 3 8B: a prefill, and a decode step."""
    is_centered = op.startswith("layer_norm")
    names = ["x"] + (["residual"] if op.endswith("_residual") else [])
    parameters = ["scale"] + (["bias"] if is_centered else [])
    options = {"eps": 1e-5, "is_centered": is_centered}

    def examples(dtype: str) -> list[CallSpec]:
        wide = jnp.promote_types(dtype, jnp.float32)
        return [
            CallSpec.of(
                op,
                {n: jax.ShapeDtypeStruct((1, 1, rows, 4096), dtype) for n in names}
                | {n: jax.ShapeDtypeStruct((1, 4096), wide) for n in parameters},
                options,
            )
            for rows in (2048, 1)
        ]

    return examples


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Normal floats; scales around 1."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in call:
        spec = call[name]
        shape = tuple(spec.size(a) for a in range(spec.ndim))
        values = rng.standard_normal(shape, np.float32)
        if name == "scale":
            values = 1 + values / 8
        arrays[name] = jnp.asarray(values, spec.dtype)
    return arrays
