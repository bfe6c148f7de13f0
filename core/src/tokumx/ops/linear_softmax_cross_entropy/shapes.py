"""Named shapes of language model heads, with the model each comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A head.

    Attributes:
      name: unique, says the model.
      source: the model.
      width: D.
      vocab: V.
      weight_layout: "vd" where the head is the embedding.
      options: further keyword arguments of the loss.
    """

    name: str
    source: str
    width: int
    vocab: int
    weight_layout: str = "dv"
    options: Mapping[str, Any] = field(default_factory=dict)


SHAPES = (
    Shape("llama-3-8b", "Llama 3 8B", 4096, 128256),
    Shape("qwen3-0.6b", "Qwen3 0.6B, tied embedding", 1024, 151936, "vd"),
    Shape("qwen3-8b", "Qwen3 8B", 4096, 151936),
    Shape("gemma-3-1b", "Gemma 3 1B, tied embedding", 1152, 262144, "vd"),
    Shape(
        "gemma-2-2b",
        "Gemma 2 2B, tied embedding",
        2304,
        256000,
        "vd",
        {"logits_soft_cap": 30.0},
    ),
    Shape("gpt-oss-20b", "gpt-oss 20B", 2880, 201088),
)
