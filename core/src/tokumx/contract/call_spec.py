"""CallSpec: what a call of an op is made of, without the numbers.

It is the key of everything that is decided before a kernel runs: which
implementation, which config, which tuned record.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Dim = int | str  # a str is a symbolic dimension of jax.export
OptionValue = None | bool | int | float | str | tuple["OptionValue", ...]

_SHORT_DTYPE = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint32": "u32",
    "uint8": "u8",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_LONG_DTYPE = {short: long for long, short in _SHORT_DTYPE.items()}


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one array; prints as `bf16[2,4096,16,128]`."""

    shape: tuple[Dim, ...]
    dtype: str

    @classmethod
    def of(cls, x: Any) -> "ArraySpec":
        """The spec of a jax or numpy array, tracer or ShapeDtypeStruct."""
        shape = tuple(
            int(d) if isinstance(d, int | np.integer) else str(d) for d in x.shape
        )
        return cls(shape, np.dtype(x.dtype).name)

    @classmethod
    def parse(cls, text: str) -> "ArraySpec":
        """Reads what `str()` writes.

        Raises:
          ValueError: the text is not of the form `f32[2,128,8,64]`.
        """
        match = re.fullmatch(r"\s*(\w+)\[([\d,\s]*)\]\s*", text)
        try:
            if match is None:
                raise ValueError("no dtype[dims]")
            shape = tuple(int(d) for d in match[2].split(",") if d.strip())
            dtype = np.dtype(_numpy_name(_LONG_DTYPE.get(match[1], match[1]))).name
        except (ValueError, TypeError) as error:
            raise ValueError(
                "ArraySpec: expected a dtype and a shape such as f32[2,128,8,64]; "
                f"got {text!r}. Known short dtypes: {', '.join(_LONG_DTYPE)}."
            ) from error
        return cls(shape, dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """No dimension is symbolic."""
        return all(isinstance(d, int) for d in self.shape)

    def size(self, axis: int) -> int:
        """A dimension that is known not to be symbolic."""
        dim = self.shape[axis]
        assert isinstance(dim, int), f"axis {axis} of {self} is symbolic"
        return dim

    def to_jax(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            [self.size(a) for a in range(self.ndim)], _numpy_name(self.dtype)
        )

    def __str__(self) -> str:
        dims = ",".join(str(d) for d in self.shape)
        return f"{_SHORT_DTYPE.get(self.dtype, self.dtype)}[{dims}]"


def _numpy_name(dtype: str) -> Any:
    """numpy learns bfloat16 and float8 only as ml_dtypes scalar types."""
    return jax.numpy.dtype(dtype)


@dataclass(frozen=True)
class CallSpec:
    """One call: the op, its arrays by name, and its static options.

    An absent optional array has no entry. Options hold only JSON values
    (tuples instead of lists), so that a spec survives a round trip through
    a tuned file unchanged.
    """

    op: str
    arrays: tuple[tuple[str, ArraySpec], ...]
    options: tuple[tuple[str, OptionValue], ...]

    @classmethod
    def of(
        cls, op: str, arrays: Mapping[str, Any], options: Mapping[str, OptionValue]
    ) -> "CallSpec":
        return cls(
            op,
            tuple(sorted((n, ArraySpec.of(x)) for n, x in arrays.items())),
            tuple(sorted(options.items())),
        )

    @functools.cached_property
    def _by_name(self) -> dict[str, ArraySpec]:
        return dict(self.arrays)

    @functools.cached_property
    def _options(self) -> dict[str, OptionValue]:
        return dict(self.options)

    def __getitem__(self, name: str) -> ArraySpec:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def option(self, name: str) -> Any:
        return self._options[name]

    @property
    def is_static(self) -> bool:
        return all(spec.is_static for _, spec in self.arrays)

    @functools.cached_property
    def key(self) -> str:
        """Canonical JSON: equal specs, and only those, have equal keys."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @functools.cached_property
    def digest(self) -> str:
        """Ten hex digits of the key's hash; names the call in a jaxpr."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:10]

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "arrays": {n: [list(s.shape), s.dtype] for n, s in self.arrays},
            "options": {n: _lists(v) for n, v in self.options},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CallSpec":
        """The inverse of to_json; KeyError or TypeError on a foreign shape."""
        arrays = tuple(
            sorted((n, ArraySpec(tuple(s), d)) for n, (s, d) in data["arrays"].items())
        )
        options = tuple(sorted((n, _tuples(v)) for n, v in data["options"].items()))
        return cls(data["op"], arrays, options)

    def __str__(self) -> str:
        arrays = ", ".join(f"{n}={s}" for n, s in self.arrays)
        options = "".join(f", {n}={v}" for n, v in self.options if v is not None)
        return f"{self.op}({arrays}{options})"


def _lists(value: Any) -> Any:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
