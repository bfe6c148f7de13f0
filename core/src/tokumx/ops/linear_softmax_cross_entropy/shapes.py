"""Named heads of language models, with the model each comes from.

N tokens, D width, V words. Where the model says so, tokens and words are cut to
what a CPU computes in about a second. Tests and benchmarks read them.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, slots=True)
class HeadShape:
    """One loss, without the numbers.

    Attributes:
      model: whose head it is.
      weight_layout: "vd" where the head is the embedding.
      logits_soft_cap: None for none.
    """

    model: str
    n: int
    d: int
    v: int
    weight_layout: str = "dv"
    logits_soft_cap: float | None = None
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """`N1024-D512-V32768`; layout, cap and dtype where they are not plain."""
        parts = [f"N{self.n}-D{self.d}-V{self.v}"]
        parts += ["tied"] if self.weight_layout == "vd" else []
        parts += ["cap"] if self.logits_soft_cap is not None else []
        parts += ["bf16"] if self.dtype == "bfloat16" else []
        return "-".join(parts)

    @property
    def flops(self) -> int:
        """Of the forward's product."""
        return 2 * self.n * self.d * self.v

    @property
    def bytes_moved(self) -> int:
        item = 2 if self.dtype == "bfloat16" else 4
        return (self.n + self.v) * self.d * item

    def arrays(self, seed: int = 0) -> dict[str, jax.Array]:
        """Normal floats, weights scaled for logits of variance 1; every eighth
        token is ignored."""
        rng = np.random.default_rng(seed)
        sizes = {"d": self.d, "v": self.v}
        weight = tuple(sizes[axis] for axis in self.weight_layout)
        labels = rng.integers(0, self.v, self.n, np.int32)
        labels[3::8] = -100
        x = rng.standard_normal((self.n, self.d), np.float32)
        w = rng.standard_normal(weight, np.float32) * np.float32(self.d**-0.5)
        return {
            "x": jnp.asarray(x, self.dtype),
            "weight": jnp.asarray(w, self.dtype),
            "labels": jnp.asarray(labels),
        }


SHAPES = (
    HeadShape("a study of losses", 1024, 512, 32768),
    HeadShape("Qwen3 0.6B, a quarter of its words", 512, 1024, 37984, "vd"),
    HeadShape("Llama 3 8B, a quarter of its width and words", 1024, 1024, 32064),
    HeadShape(
        "Gemma 2 2B, half its width, 1/8 of its words", 512, 1152, 32000, "vd", 30.0
    ),
    HeadShape("a fine-tuning step of few tokens", 64, 1024, 32064),
    HeadShape("GPT-2 124M", 256, 768, 50257, "vd"),
    HeadShape("a study of losses", 1024, 512, 32768, dtype="bfloat16"),
    HeadShape(
        "Qwen3 0.6B, a quarter of its words", 512, 1024, 37984, "vd", None, "bfloat16"
    ),
)
