"""Named shapes of gated linear units, with the model each comes from.

N rows, D width, F hidden width. Tests, benchmarks and the tuner read them by
name.
"""

from dataclasses import dataclass, replace

import jax
import numpy as np

from tokumx.contract import ArraySpec

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class GluShape:
    """One call of gated_linear_unit, without the numbers.

    Attributes:
      name: `llama3-8b-N512`; the dtype is named unless it is float32.
      model: whose shape it is.
      is_fused: gate and up are one array.
      has_bias: every projection has a bias.
      has_down: the down projection, back to D, is part of it.
    """

    name: str
    model: str
    n: int
    d: int
    f: int
    activation: str = "silu"
    dtype: str = "float32"
    is_fused: bool = False
    has_bias: bool = False
    has_down: bool = True

    @property
    def array_specs(self) -> dict[str, ArraySpec]:
        """Arrays of the call, weights by the names of the OpSpec."""
        shapes: dict[str, tuple[int, ...]] = {"x": (self.n, self.d)}
        if self.is_fused:
            shapes["weights"] = (self.d, 2, self.f)
        else:
            shapes["gate_weight"] = shapes["up_weight"] = (self.d, self.f)
        if self.has_bias:
            shapes["gate_bias"] = shapes["up_bias"] = (self.f,)
        if self.has_down:
            shapes["down_weight"] = (self.f, self.d)
        if self.has_bias and self.has_down:
            shapes["down_bias"] = (self.d,)
        return {n: ArraySpec(shape, self.dtype) for n, shape in shapes.items()}

    def arrays(self, seed: int = 0) -> dict[str, jax.Array]:
        """Normal floats; products keep a variance of about 1."""
        rng = np.random.default_rng(seed)
        arrays = {}
        for name, spec in self.array_specs.items():
            shape = tuple(spec.size(a) for a in range(spec.ndim))
            scale = np.float32(shape[0] ** -0.5 if "weight" in name else 1)
            values = rng.standard_normal(shape, np.float32) * scale
            arrays[name] = jax.numpy.asarray(values, spec.dtype)
        return arrays

    @property
    def weight_elements(self) -> int:
        return (3 if self.has_down else 2) * self.d * self.f

    @property
    def flops(self) -> int:
        """Of the forward's products."""
        return 2 * self.n * self.weight_elements

    @property
    def bytes_moved(self) -> int:
        """Each weight and row read once, the result written once."""
        out = self.d if self.has_down else self.f
        elements = self.weight_elements + self.n * (self.d + out)
        return elements * _ITEM_BYTES[self.dtype]


def _models() -> list[GluShape]:
    return [
        GluShape("study-N512", "study of gated units", 512, 1024, 2816),
        GluShape(
            "study-N512-fused", "study of gated units", 512, 1024, 2816, is_fused=True
        ),
        GluShape(
            "study-N512-up", "study of gated units", 512, 1024, 2816, has_down=False
        ),
        GluShape(
            *("study-N16-fused", "study of gated units", 16, 1024, 2816),
            is_fused=True,
        ),
        GluShape("study-N1", "study of decoding", 1, 1024, 2816),
        GluShape("study-N1-fused", "study of decoding", 1, 1024, 2816, is_fused=True),
        GluShape("qwen3-0.6b-N128", "Qwen3-0.6B", 128, 1024, 3072),
        GluShape("gemma3-1b-N64", "Gemma-3-1B", 64, 1152, 6912, "gelu_tanh"),
        GluShape(
            *("gpt-oss-20b-expert-N64", "gpt-oss-20b, one expert", 64, 2880, 2880),
            activation="swiglu_oai",
            is_fused=True,
            has_bias=True,
        ),
        GluShape("deepseek-v3-expert-N8", "DeepSeek-V3, one expert", 8, 7168, 2048),
        GluShape("llama3-8b-N4096", "Llama-3-8B", 4096, 4096, 14336),
    ]


def _bf16(shape: GluShape) -> GluShape:
    return replace(shape, name=f"{shape.name}-bf16", dtype="bfloat16")


SHAPES: dict[str, GluShape] = {
    shape.name: shape for s in _models() for shape in (s, _bf16(s))
}
