"""Representative operands for a call, for tuning and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import CallSpec
from tokumx.ops.rotary_embedding.scaling import OP


def examples(dtype: str) -> list[CallSpec]:
    """Queries of Llama 3 8B: a prefill, and a decode step of a batch."""
    wide = jnp.promote_types(dtype, jnp.float32)
    return [
        CallSpec.of(
            OP,
            {
                "x": jax.ShapeDtypeStruct((batch, t, 32, 128), dtype),
                "cos": jax.ShapeDtypeStruct((batch, t, 64), wide),
                "sin": jax.ShapeDtypeStruct((batch, t, 64), wide),
            },
            {"interleaved": False},
        )
        for batch, t in ((1, 2048), (16, 1))
    ]


def make_arrays(call: CallSpec, seed: int) -> dict[str, jax.Array]:
    """Normal floats; cosines and sines of one angle each."""
    rng = np.random.default_rng(seed)
    shapes = {n: [call[n].size(a) for a in range(call[n].ndim)] for n in call}
    angles = rng.uniform(0, 2 * np.pi, shapes["cos"])
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    return {
        n: jnp.asarray(
            tables[n] if n in tables else rng.standard_normal(shape, np.float32),
            call[n].dtype,
        )
        for n, shape in shapes.items()
    }
