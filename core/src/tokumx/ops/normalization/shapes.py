"""Named rows of language models, with the model each comes from.

N rows, D width. Tests and benchmarks read them.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, slots=True)
class NormShape:
    """One norm, without the numbers.

    Attributes:
      model: whose norm it is.
      op: "rms_norm" or "layer_norm"; the latter with a bias.
      has_residual: the sum before the norm is part of it.
    """

    model: str
    n: int
    d: int
    op: str = "rms_norm"
    has_residual: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """`rms-N2048-D4096`; residual and dtype where they are not plain."""
        parts = [f"{self.op.split('_')[0]}-N{self.n}-D{self.d}"]
        parts += ["add"] if self.has_residual else []
        parts += ["bf16"] if self.dtype == "bfloat16" else []
        return "-".join(parts)

    @property
    def flops(self) -> int:
        """Of the forward: a square, a sum and two products a number."""
        return 4 * self.n * self.d

    @property
    def bytes_moved(self) -> int:
        """Each array read or written once."""
        item = 2 if self.dtype == "bfloat16" else 4
        return (4 if self.has_residual else 2) * self.n * self.d * item

    def arrays(self, seed: int = 0) -> dict[str, jax.Array]:
        rng = np.random.default_rng(seed)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, np.float32)

        arrays = {"x": jnp.asarray(normal(self.n, self.d), self.dtype)}
        arrays["scale"] = jnp.asarray(1 + normal(self.d) / 8, self.dtype)
        if self.op == "layer_norm":
            arrays["bias"] = jnp.asarray(normal(self.d), self.dtype)
        if self.has_residual:
            arrays["residual"] = jnp.asarray(normal(self.n, self.d), self.dtype)
        return arrays


SHAPES = (
    NormShape("Llama 3 8B", 2048, 4096),
    NormShape("Llama 3 8B", 2048, 4096, has_residual=True),
    NormShape("Qwen3 0.6B", 1024, 1024),
    NormShape("Qwen3 0.6B, heads of queries", 16384, 128),
    NormShape("Gemma 3 4B", 512, 2560),
    NormShape("gpt-oss 20B", 512, 2880, has_residual=True),
    NormShape("DeepSeek-V3", 256, 7168, has_residual=True),
    NormShape("Llama 3 8B, decoding", 1, 4096, has_residual=True),
    NormShape("Llama 3 8B, decoding a batch", 16, 4096, has_residual=True),
    NormShape("GPT-2 124M", 1024, 768, "layer_norm"),
    NormShape("GPT-3 6.7B", 2048, 4096, "layer_norm", has_residual=True),
    NormShape("Llama 3 8B", 2048, 4096, dtype="bfloat16"),
    NormShape("Llama 3 8B", 2048, 4096, has_residual=True, dtype="bfloat16"),
    NormShape("GPT-2 124M", 1024, 768, "layer_norm", dtype="bfloat16"),
)
