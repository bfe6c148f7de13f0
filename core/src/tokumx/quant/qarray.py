"""QArray: a quantized array as one pytree."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from tokumx.quant.packing import unpack_int4

# Storage of each kind, and its largest magnitude.
QTYPES: dict[str, tuple[Any, float]] = {
    "int8": (jnp.int8, 127.0),
    "int4": (jnp.int8, 7.0),
    "float8_e4m3fn": (jnp.float8_e4m3fn, 448.0),
    "float8_e5m2": (jnp.float8_e5m2, 57344.0),
}


def refuse(what: str, rule: str, got: str, advice: str) -> ValueError:
    return ValueError(f"{what}: {rule}; got {got}. {advice}")


def written(x: Any) -> str:
    """`int8[4,8]`."""
    return f"{jnp.dtype(x.dtype).name}[{','.join(map(str, x.shape))}]"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QArray:
    """An array in few bits: (values - zero_points) * scales, tile by tile.

    A scale stands for a tile: each axis of `scales` has a size that divides the
    array's own. [1, 1] is one scale for the tensor, [1, N] one for each column of
    [K, N], [K / 32, N] one for 32 rows of a column.

    A pytree: it goes through jit, vmap, scan and sharding as its arrays do. Inside
    transformations its leaves may be placeholders, so nothing is checked on creation;
    the ops that take one check it.

    Attributes:
      values: int8, f8e4m3 or f8e5m2; or uint8, two 4-bit integers in each.
      scales: floating, of as many axes; their dtype is that of the array it stands
        for.
      zero_points: the integer that stands for zero, as scales; None: 0.
      qtype: "int8", "int4", "float8_e4m3fn" or "float8_e5m2".
      packed_axis: along which two 4-bit integers share a byte, counted from the end
        (-2 for the rows of a matrix, however many matrices there are); None: each
        number has its own byte.
    """

    values: jax.Array
    scales: jax.Array
    zero_points: jax.Array | None = None
    qtype: str = field(default="int8", metadata={"static": True})
    packed_axis: int | None = field(default=None, metadata={"static": True})

    @classmethod
    def of(cls, array: Any) -> "QArray":
        """A QArray, or one of Qwix's, as a QArray; nothing is copied but int4.

        Raises:
          ValueError: it is neither, or of a kind that tokumx does not know.
        """
        if isinstance(array, QArray):
            return array
        names = ("qvalue", "scale", "zero_point", "qtype")
        if not all(hasattr(array, n) for n in names):
            raise refuse(
                "QArray",
                "an array must be a tokumx.QArray or Qwix's",
                type(array).__name__,
                "Make one with tokumx.quantize.",
            )
        qtype = jnp.dtype(array.qtype).name
        if qtype not in QTYPES:
            raise refuse(
                "QArray",
                f"qtype must be among {', '.join(QTYPES)}",
                repr(qtype),
                "Quantize to one of them.",
            )
        storage, _ = QTYPES[qtype]
        zero_points = array.zero_point
        if zero_points is not None and jnp.issubdtype(zero_points.dtype, jnp.integer):
            zero_points = zero_points.astype(jnp.int8)
        return cls(array.qvalue.astype(storage), array.scale, zero_points, qtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array it stands for."""
        shape = list(self.values.shape)
        if self.packed_axis is not None:
            shape[self.packed_axis] *= 2
        return tuple(shape)

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def dtype(self) -> Any:
        """Of the array it stands for."""
        return self.scales.dtype

    @property
    def nbytes(self) -> int:
        """Of values, scales and zero points together."""
        return sum(x.nbytes for x in jax.tree.leaves(self))

    @property
    def tile(self) -> tuple[int, ...]:
        """How many numbers along each axis share a scale."""
        return tuple(n // s for n, s in zip(self.shape, self.scales.shape, strict=True))

    def astype(self, dtype: Any) -> "QArray":
        """Stands for an array of another dtype; the values stay."""
        return replace(self, scales=self.scales.astype(dtype))

    def unpacked(self) -> "QArray":
        """The same with a byte for each number."""
        if self.packed_axis is None:
            return self
        axis = self.ndim + self.packed_axis
        return replace(self, values=unpack_int4(self.values, axis), packed_axis=None)

    def dequantize(self, dtype: Any = None) -> jax.Array:
        """The array it stands for, computed in f32 at least, in `dtype` or its own."""
        dtype = jnp.dtype(self.dtype if dtype is None else dtype)
        wide = jnp.promote_types(dtype, jnp.float32)
        values = self.unpacked().values.astype(wide)
        # [n0, n1, ...] -> [s0, n0 / s0, s1, n1 / s1, ...]
        pairs = zip(self.scales.shape, self.tile, strict=True)
        tiled = values.reshape([d for pair in pairs for d in pair])
        between = tuple(range(1, 2 * self.ndim, 2))
        if self.zero_points is not None:
            zero = self.zero_points_as_scales().astype(wide)
            tiled = tiled - jnp.expand_dims(zero, between)
        tiled = tiled * jnp.expand_dims(self.scales.astype(wide), between)
        return tiled.reshape(self.shape).astype(dtype)

    def zero_points_as_scales(self) -> jax.Array:
        """Zero points, one for each scale; there must be some."""
        zero = self.zero_points
        assert zero is not None, "no zero points"
        for axis, want in enumerate(self.scales.shape):
            times = want // zero.shape[axis]
            zero = jnp.repeat(zero, times, axis) if times > 1 else zero
        return zero

    def problem(self) -> str | None:
        """What is wrong with it, as `rule; got ...`, or None."""
        if self.qtype not in QTYPES:
            return f"qtype must be among {', '.join(QTYPES)}; got {self.qtype!r}"
        is_packed = self.packed_axis is not None
        storage = jnp.uint8 if is_packed else QTYPES[self.qtype][0]
        if is_packed and self.qtype != "int4":
            return f"only int4 is packed; got qtype={self.qtype!r}"
        if self.values.dtype != storage:
            want = jnp.dtype(storage).name
            return f"values must be {want}; got {written(self.values)}"
        if not jnp.issubdtype(self.scales.dtype, jnp.floating):
            return f"scales must be floating; got {written(self.scales)}"
        for name, array in (("scales", self.scales), ("zero_points", self.zero_points)):
            if array is not None and not _divides(array.shape, self.shape):
                return (
                    f"each axis of {name} must divide the array's; got {name}="
                    f"{written(array)} for an array {list(self.shape)}"
                )
        zero = self.zero_points
        if zero is not None and not _divides(zero.shape, self.scales.shape):
            return (
                "zero_points may not be finer than scales; got "
                f"{written(zero)} and {written(self.scales)}"
            )
        return None


def _divides(parts: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(parts) == len(shape) and all(
        p > 0 and n % p == 0 for p, n in zip(parts, shape, strict=True)
    )
