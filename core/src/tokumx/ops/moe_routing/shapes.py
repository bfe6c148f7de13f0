"""Named shapes of mixture-of-experts layers, with the model each comes from.

Experts, choices and widths are the model's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shape:
    """One layer.

    Attributes:
      name: unique, says the model.
      source: the model.
      experts, k: of the layer, and of a token.
      width, hidden: of a token, and of an expert.
      routing: options of top_k_routing.
      has_correction_bias: the routing has one.
      activation: of the experts.
      has_biases: router and experts have biases.
    """

    name: str
    source: str
    experts: int
    k: int
    width: int
    hidden: int
    routing: Mapping[str, Any] = field(default_factory=dict)
    has_correction_bias: bool = False
    activation: str = "silu"
    has_biases: bool = False

    def logits(self, tokens: int, seed: int = 0) -> np.ndarray:
        """[tokens, E] f32."""
        rng = np.random.default_rng(seed)
        return rng.standard_normal((tokens, self.experts), np.float32)

    def options(self, seed: int = 0) -> dict[str, Any]:
        """Keyword arguments of top_k_routing beside k."""
        options = dict(self.routing)
        if self.has_correction_bias:
            rng = np.random.default_rng(seed)
            bias = rng.normal(0, 0.1, self.experts).astype(np.float32)
            options["correction_bias"] = bias
        return options


SHAPES = (
    Shape(
        "mixtral-8x7b",
        "Mixtral 8x7B",
        experts=8,
        k=2,
        width=4096,
        hidden=14336,
        routing={"renormalize": True},
    ),
    Shape(
        "qwen3-30b-a3b",
        "Qwen3-MoE 30B-A3B",
        experts=128,
        k=8,
        width=2048,
        hidden=768,
        routing={"renormalize": True},
    ),
    Shape(
        "deepseek-v3",
        "DeepSeek-V3",
        experts=256,
        k=8,
        width=7168,
        hidden=2048,
        routing={
            "score": "sigmoid",
            "num_groups": 8,
            "top_groups": 4,
            "renormalize": True,
            "scale": 2.5,
        },
        has_correction_bias=True,
    ),
    Shape(
        "gpt-oss-20b",
        "gpt-oss 20B",
        experts=32,
        k=4,
        width=2880,
        hidden=2880,
        routing={"normalize": "after"},
        activation="swiglu_oai",
        has_biases=True,
    ),
    Shape(
        "gpt-oss-120b",
        "gpt-oss 120B",
        experts=128,
        k=4,
        width=2880,
        hidden=2880,
        routing={"normalize": "after"},
        activation="swiglu_oai",
        has_biases=True,
    ),
)
