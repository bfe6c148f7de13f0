"""Named attention shapes, each with the model or study it comes from.

B batch, T query length, S key length, N query heads, K key heads, H head dim.
Tests, benchmarks and the tuner read them by name.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokumx.contract import ArraySpec

Window = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One call of dot_product_attention, without the numbers.

    Attributes:
      name: `causal-T2048-h64`; the dtype is named unless it is float32.
      model: whose shape it is.
      kind: "prefill" (T == S) or "decode" (few queries over a filled cache).
      window: (left, right), as local_window_size.
      has_sinks: a learned logit a head takes part in the softmax.
    """

    name: str
    model: str
    kind: Literal["prefill", "decode"]
    b: int
    t: int
    s: int
    n: int
    k: int
    h: int
    dtype: str = "float32"
    is_causal: bool = False
    window: Window | None = None
    soft_cap: float | None = None
    has_sinks: bool = False

    @property
    def array_specs(self) -> dict[str, ArraySpec]:
        """The arrays of the call by argument name."""
        keys = ArraySpec((self.b, self.s, self.k, self.h), self.dtype)
        specs = {
            "query": ArraySpec((self.b, self.t, self.n, self.h), self.dtype),
            "key": keys,
            "value": keys,
        }
        if self.has_sinks:
            specs["sinks"] = ArraySpec((self.n,), "float32")
        return specs

    @property
    def options(self) -> dict[str, Any]:
        """The static options of the call by argument name."""
        return {
            "is_causal": self.is_causal,
            "local_window_size": self.window,
            "logits_soft_cap": self.soft_cap,
        }

    @property
    def visible_pairs(self) -> int:
        """(query, key) pairs of one head of one batch row that are not masked."""
        left, right = self.window or (None, None)
        right = 0 if self.is_causal else right
        queries = np.arange(self.t, dtype=np.int64)
        first = np.zeros_like(queries) if left is None else queries - left
        last = np.full_like(queries, self.s - 1) if right is None else queries + right
        counts = np.minimum(last, self.s - 1) - np.maximum(first, 0) + 1
        return int(np.maximum(counts, 0).sum())

    @property
    def flops(self) -> int:
        """Of the forward's two products, over visible pairs only."""
        return 4 * self.b * self.n * self.h * self.visible_pairs

    @property
    def bytes_moved(self) -> int:
        """Query, key and value read once, the output written once."""
        item = ArraySpec((), self.dtype).to_jax().dtype.itemsize
        elements = self.b * self.h * (2 * self.t * self.n + 2 * self.s * self.k)
        return elements * item


_SUITE = "study of lengths"
# B * N * H by T: the longer, the fewer heads, so that a step of plain attention
# takes at most a second or two, and a float64 one no more than 2.5 GB.
_SUITE_WIDTHS = {512: 2048, 1024: 1024, 2048: 512, 4096: 256, 8192: 64}
_MAX_HEADS = 8


def _prefill(
    name: str, model: str, b: int, t: int, n: int, k: int, h: int, **options: Any
) -> AttentionShape:
    return AttentionShape(name, model, "prefill", b, t, t, n, k, h, **options)


def _decode(
    name: str, model: str, b: int, s: int, n: int, k: int, h: int, **options: Any
) -> AttentionShape:
    return AttentionShape(name, model, "decode", b, 1, s, n, k, h, **options)


def _suite_shape(t: int, h: int, is_causal: bool, dtype: str) -> AttentionShape:
    heads = max(_SUITE_WIDTHS[t] // h, 1)
    n = min(heads, _MAX_HEADS)
    name = f"{'causal' if is_causal else 'full'}-T{t}-h{h}{_suffix(dtype)}"
    return _prefill(
        name, _SUITE, heads // n, t, n, n, h, dtype=dtype, is_causal=is_causal
    )


def _suffix(dtype: str) -> str:
    return {"float32": "", "bfloat16": "-bf16"}[dtype]


def _lengths() -> list[AttentionShape]:
    shapes = [
        _suite_shape(t, h, is_causal, "float32")
        for is_causal in (True, False)
        for h in (64, 128)
        for t in _SUITE_WIDTHS
    ]
    bf16 = ((512, 64), (2048, 64), (2048, 128), (4096, 64))
    return shapes + [_suite_shape(t, h, True, "bfloat16") for t, h in bf16]


def _short() -> list[AttentionShape]:
    rows = ((64, 8), (128, 8), (256, 4))
    return [
        _prefill(f"short-T{t}-h64", _SUITE, b, t, 8, 8, 64, is_causal=True)
        for t, b in rows
    ]


def _decodes() -> list[AttentionShape]:
    return [
        _decode(
            f"decode-n8k{k}-h{h}{_suffix(dtype)}",
            "study of decoding",
            *(4, 4096, 8, k, h),
            dtype=dtype,
        )
        for dtype in ("float32", "bfloat16")
        for k in (8, 2)
        for h in (64, 128)
    ]


def _models() -> list[AttentionShape]:
    causal: dict[str, Any] = {"is_causal": True}
    bf16: dict[str, Any] = {"dtype": "bfloat16"}
    return [
        _prefill("llama3-8b-T1024", "Llama-3-8B", 1, 1024, 32, 8, 128, **causal),
        _prefill(
            *("llama3-8b-T1024-bf16", "Llama-3-8B", 1, 1024, 32, 8, 128),
            **causal,
            **bf16,
        ),
        _decode("llama3-8b-decode", "Llama-3-8B", 4, 4096, 32, 8, 128),
        _decode("llama3-8b-decode-bf16", "Llama-3-8B", 4, 4096, 32, 8, 128, **bf16),
        _prefill("qwen3-0.6b-T1024", "Qwen3-0.6B", 1, 1024, 16, 8, 128, **causal),
        _prefill(
            *("gemma2-2b-T1024-cap", "Gemma-2-2B", 1, 1024, 8, 4, 256),
            **causal,
            soft_cap=50.0,
        ),
        _prefill(
            *("gemma3-4b-T2048-window1024", "Gemma-3-4B", 1, 2048, 8, 4, 256),
            **causal,
            window=(1023, 0),
        ),
        _prefill(
            *("gpt-oss-20b-T512-window128-sinks", "gpt-oss-20b", 1, 512, 64, 8, 64),
            **causal,
            window=(127, 0),
            has_sinks=True,
        ),
        _prefill(
            *("window512-T4096-h64", _SUITE, 1, 4096, 4, 4, 64),
            **causal,
            window=(511, 0),
        ),
    ]


SHAPES: dict[str, AttentionShape] = {
    shape.name: shape for shape in _lengths() + _short() + _models() + _decodes()
}
