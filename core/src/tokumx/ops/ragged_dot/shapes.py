"""Named products of mixture-of-experts layers, with the model each comes from.

M rows (tokens times choices), K and N widths, G experts. Widths marked as cut
are what a CPU multiplies in well under a second. Tests and benchmarks read them.
"""

from dataclasses import dataclass

import numpy as np

from tokumx.ops.ragged_dot.inputs import random_sizes


@dataclass(frozen=True, slots=True)
class RaggedShape:
    """One call of ragged_dot, without the numbers.

    Attributes:
      name: `M2048-K512-N1024-G8`; the dtype is named unless it is float32.
      model: whose shape it is.
      kind: "prefill" (many rows a group) or "decode" (few).
    """

    model: str
    kind: str
    m: int
    k: int
    n: int
    g: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        suffix = "-bf16" if self.dtype == "bfloat16" else ""
        return f"M{self.m}-K{self.k}-N{self.n}-G{self.g}{suffix}"

    def group_sizes(self, seed: int = 0) -> np.ndarray:
        """[G] int32 with the sum M, as unequal as a trained router's."""
        return random_sizes(np.random.default_rng(seed), self.m, self.g)


SHAPES = tuple(
    RaggedShape(model, kind, m, k, n, g, dtype)
    for dtype in ("float32", "bfloat16")
    for model, kind, m, k, n, g in (
        ("Mixtral 8x7B, an eighth of its widths", "prefill", 2048, 512, 1024, 8),
        ("32 experts, otherwise the same", "prefill", 2048, 512, 1024, 32),
        ("Qwen3-MoE 30B-A3B, a quarter of its width", "prefill", 4096, 512, 768, 128),
        ("gpt-oss 20B, a quarter of its widths", "decode", 256, 720, 720, 32),
        ("Mixtral 8x7B, a quarter of its widths", "decode", 16, 1024, 3584, 8),
        ("Qwen3-MoE 30B-A3B, one token", "decode", 8, 2048, 768, 128),
        ("a small model in a test", "prefill", 64, 64, 64, 4),
    )
)
