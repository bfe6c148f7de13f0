"""Named heads of language models, with the model each comes from.

B batch, T positions, N heads of H numbers, R of them rotated. Tests and benchmarks
read them.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.ops.rotary_embedding.tables import rotary_tables

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class RotaryShape:
    """One call of rotary_embedding for the queries of a layer.

    Attributes:
      model: whose heads they are.
    """

    model: str
    b: int
    t: int
    n: int
    h: int
    r: int
    theta: float = 10_000.0
    interleaved: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """`B1-T2048-N32-H128`; what is not plain is added."""
        parts = [f"B{self.b}-T{self.t}-N{self.n}-H{self.h}"]
        parts += [f"R{self.r}"] if self.r < self.h else []
        parts += ["interleaved"] if self.interleaved else []
        parts += ["bf16"] if self.dtype == "bfloat16" else []
        return "-".join(parts)

    @property
    def flops(self) -> int:
        """Four products and two sums a pair."""
        return 3 * self.b * self.t * self.n * self.r

    @property
    def bytes_moved(self) -> int:
        """Heads read and written once, and the tables read once."""
        heads = 2 * self.b * self.t * self.n * self.h * _ITEM_BYTES[self.dtype]
        return heads + 4 * self.b * self.t * self.r

    def arrays(self, seed: int = 0) -> dict[str, jax.Array]:
        rng = np.random.default_rng(seed)
        heads = rng.standard_normal((self.b, self.t, self.n, self.h), np.float32)
        first = rng.integers(0, 4096, (self.b, 1))
        tables = rotary_tables(first + np.arange(self.t), self.r, theta=self.theta)
        return {"x": jnp.asarray(heads, self.dtype), **tables._asdict()}


SHAPES = (
    RotaryShape("Llama 3 8B", 1, 2048, 32, 128, 128, 500_000.0),
    RotaryShape("Llama 3 8B, keys", 1, 2048, 8, 128, 128, 500_000.0),
    RotaryShape("Qwen3 0.6B", 2, 1024, 16, 128, 128, 1e6),
    RotaryShape("DeepSeek-V3", 1, 1024, 16, 64, 64, interleaved=True),
    RotaryShape("gpt-oss 20B", 1, 1024, 64, 64, 64, 150_000.0),
    RotaryShape("Pythia 1.4B", 1, 2048, 16, 128, 32),
    RotaryShape("Llama 3 8B, decoding a batch", 16, 1, 32, 128, 128, 500_000.0),
    RotaryShape("Llama 3 8B", 1, 2048, 32, 128, 128, 500_000.0, dtype="bfloat16"),
    RotaryShape("DeepSeek-V3", 1, 1024, 16, 64, 64, interleaved=True, dtype="bfloat16"),
)
