"""Named products with quantized weights, with the model each comes from.

T rows, K inner size, N columns. Tests and benchmarks read them.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.quant import QArray, quantize

_BITS = {"int8": 8, "int4": 4}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class QuantizedShape:
    """One product, without the numbers.

    Attributes:
      model: whose weights they are.
      qtype: of the weights.
      group_size: rows of a column that share a scale; None: all.
    """

    model: str
    t: int
    k: int
    n: int
    qtype: str = "int8"
    group_size: int | None = None
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """`int8-T1-K4096-N4096`; groups and dtype where there are any."""
        parts = [f"{self.qtype}-T{self.t}-K{self.k}-N{self.n}"]
        parts += [f"G{self.group_size}"] if self.group_size else []
        parts += ["bf16"] if self.dtype == "bfloat16" else []
        return "-".join(parts)

    @property
    def flops(self) -> int:
        return 2 * self.t * self.k * self.n

    @property
    def bytes_moved(self) -> int:
        """Weights, scales, rows and results once."""
        scales = 4 * self.n * (self.k // self.group_size if self.group_size else 1)
        rows = self.t * (self.k + self.n) * _ITEM_BYTES[self.dtype]
        return self.k * self.n * _BITS[self.qtype] // 8 + scales + rows

    def arrays(self, seed: int = 0) -> dict[str, jax.Array]:
        """x, values, scales; and `weights`, what they stand for, in x's dtype."""
        rng = np.random.default_rng(seed)
        wide = rng.standard_normal((self.k, self.n), np.float32) * self.k**-0.5
        found = quantize(wide, self.qtype, axis=0, group_size=self.group_size)
        x = rng.standard_normal((self.t, self.k), np.float32)
        return {
            "x": jnp.asarray(x, self.dtype),
            "values": found.values,
            "scales": found.scales,
            "weights": found.dequantize(self.dtype),
        }

    def weights(self, values: jax.Array, scales: jax.Array) -> QArray:
        packed_axis = -2 if self.qtype == "int4" else None
        return QArray(values, scales, None, self.qtype, packed_axis)


SHAPES = (
    QuantizedShape("Llama 3 8B, output", 1, 4096, 4096),
    QuantizedShape("Llama 3 8B, output", 1, 4096, 4096, "int4", 32),
    QuantizedShape("Llama 3 8B, gate", 1, 4096, 14336),
    QuantizedShape("Llama 3 8B, down", 1, 14336, 4096, "int4", 128),
    QuantizedShape("Qwen3 0.6B, gate", 1, 1024, 3072),
    QuantizedShape("Qwen3 0.6B, gate", 4, 1024, 3072, "int4", 32),
    QuantizedShape("Llama 3 8B, output", 16, 4096, 4096),
    QuantizedShape("Qwen3 0.6B, gate", 512, 1024, 3072),
    QuantizedShape("Qwen3 0.6B, gate", 512, 1024, 3072, "int4", 32),
    QuantizedShape("Llama 3 8B, output", 1, 4096, 4096, dtype="bfloat16"),
    QuantizedShape("Llama 3 8B, output", 1, 4096, 4096, "int4", 32, "bfloat16"),
)
