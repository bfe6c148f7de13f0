"""Frequencies of a rotary embedding, and how models stretch them to long contexts.

R rotated numbers of a head, in pairs; frequency i turns pair i by that many radians
a position. Computed in f64, at trace time.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

OP = "rotary_embedding"


def base_frequencies(rotary_dim: int, theta: float) -> np.ndarray:
    """theta ** (-2i / R): [R / 2], f64."""
    return theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)


@dataclass(frozen=True, slots=True)
class _Scaling:
    """Refuses numbers that are not positive."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type is bool or (value is None and f.default is None):
                continue
            is_number = isinstance(value, int | float | np.number)
            if not is_number or not math.isfinite(value) or value <= 0:
                raise ValueError(
                    f"{type(self).__name__}: {f.name} must be a positive number; got "
                    f"{value!r}. See its docstring for what it stands for."
                )

    def _refuse(self, rule: str, got: str, advice: str) -> None:
        raise ValueError(f"{type(self).__name__}: {rule}; got {got}. {advice}")


@dataclass(frozen=True, slots=True)
class LinearScaling(_Scaling):
    """Position interpolation: all frequencies divided by `factor`.

    Source: Chen et al. 2023, arXiv:2306.15595.
    """

    factor: float

    def frequencies(self, rotary_dim: int, theta: float) -> np.ndarray:
        return base_frequencies(rotary_dim, theta) / self.factor

    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Llama3Scaling(_Scaling):
    """Llama 3.1's: slow frequencies divided by `factor`, fast ones kept.

    Attributes:
      factor: 8 for Llama 3.1, 32 for Llama 3.2.
      low_freq_factor: what turns less often than this in the original context is
        divided by factor.
      high_freq_factor: what turns more often is kept; between them a ramp.
      original_max_position: positions of the original context.

    Source: Llama 3.1's model code and config.json (rope_type "llama3").
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def __post_init__(self) -> None:
        _Scaling.__post_init__(self)
        if self.low_freq_factor >= self.high_freq_factor:
            self._refuse(
                "low_freq_factor must be less than high_freq_factor",
                f"{self.low_freq_factor!r} and {self.high_freq_factor!r}",
                "Llama 3.1 has 1 and 4.",
            )

    def frequencies(self, rotary_dim: int, theta: float) -> np.ndarray:
        plain = base_frequencies(rotary_dim, theta)
        turns = self.original_max_position * plain / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = np.clip((turns - self.low_freq_factor) / span, 0, 1)
        return plain * (kept + (1 - kept) / self.factor)

    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclass(frozen=True, slots=True)
class YarnScaling(_Scaling):
    """YaRN: slow frequencies divided by `factor`, and larger logits.

    Attributes:
      factor: the new context over the original one.
      original_max_position: positions of the original context.
      beta_fast: pairs that turn more often than this in the original context keep
        their frequency.
      beta_slow: pairs that turn less often are divided by factor.
      attention_factor: what cosines and sines are multiplied by; None means
        m(mscale) / m(mscale_all_dim), with m(s) = 0.1 * s * ln(factor) + 1.
      mscale, mscale_all_dim: DeepSeek's; without the latter the divisor is 1.
      is_truncated: the ramp's ends are whole pairs, as most models have it; gpt-oss
        does not.

    Source: Peng et al. 2023, arXiv:2309.00071, eq. 19 to 23; DeepSeek-V3's code.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 1.0
    mscale_all_dim: float | None = None
    is_truncated: bool = True

    def __post_init__(self) -> None:
        _Scaling.__post_init__(self)
        if self.beta_slow >= self.beta_fast:
            self._refuse(
                "beta_slow must be less than beta_fast",
                f"{self.beta_slow!r} and {self.beta_fast!r}",
                "YaRN has 1 and 32.",
            )

    def frequencies(self, rotary_dim: int, theta: float) -> np.ndarray:
        plain = base_frequencies(rotary_dim, theta)
        low = self._pair_of(self.beta_fast, rotary_dim, theta)
        high = self._pair_of(self.beta_slow, rotary_dim, theta)
        if self.is_truncated:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        width = high - low if high > low else 0.001
        divided = np.clip((np.arange(rotary_dim // 2) - low) / width, 0, 1)
        return plain * ((1 - divided) + divided / self.factor)

    def _pair_of(self, turns: float, rotary_dim: int, theta: float) -> float:
        """The pair that turns so often in the original context."""
        length = self.original_max_position / (2 * math.pi * turns)
        return rotary_dim * math.log(length) / (2 * math.log(theta))

    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.attention_factor is not None:
            return float(self.attention_factor)
        over = 1.0 if self.mscale_all_dim is None else self._m(self.mscale_all_dim)
        return self._m(self.mscale) / over

    def _m(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1 if self.factor > 1 else 1.0


Scaling = LinearScaling | Llama3Scaling | YarnScaling


def scaled_frequencies(
    rotary_dim: int, theta: Any, scaling: Any
) -> tuple[np.ndarray, float]:
    """Frequencies [R / 2] in f64, and the magnitude of cosines and sines."""
    is_number = isinstance(theta, int | float | np.number)
    if not is_number or not math.isfinite(theta) or theta <= 1:
        raise ValueError(
            f"{OP}: theta must be a Python number > 1; got {theta!r}. "
            "Models have 10000 or more."
        )
    if scaling is None:
        return base_frequencies(rotary_dim, float(theta)), 1.0
    if not isinstance(scaling, Scaling):
        raise ValueError(
            f"{OP}: scaling must be None, a LinearScaling, Llama3Scaling or "
            f"YarnScaling; got {type(scaling).__name__}. Pass frequencies= for another."
        )
    return scaling.frequencies(rotary_dim, float(theta)), scaling.magnitude()
