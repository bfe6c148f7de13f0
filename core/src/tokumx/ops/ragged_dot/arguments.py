"""Checks the arguments and brings them to one canonical form.

Canonical: every array has a leading problem axis b of size 1, which vmap
makes larger. group_sizes is [1, E] int32; group_ids, [1, G] int32, says which
of the E groups each of the G local ones is; bias is [1, G, N], and bias_owner,
[1, K], is 1 at the first K and 0 elsewhere: of devices that share the sum over
K, the one that holds the first K adds the bias.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import ArraySpec
from tokumx.debug import check_values
from tokumx.quant import QArray

DTYPES = ("float32", "bfloat16", "float16", "float64")


class Checked:
    """Rows and matrices, or two sets of rows, and checks of the rest.

    Args:
      op: name of the public function.
      lhs, rhs: floating arrays; rhs may be a shape alone.
      shapes: how the two must look, e.g. "lhs must be [M, K] and rhs [G, K, N]".
      rank: of rhs.
    """

    def __init__(self, op: str, lhs: Any, rhs: Any, shapes: str, rank: int):
        self._op = op
        self.lhs = jnp.asarray(lhs)
        is_shape = isinstance(rhs, jax.ShapeDtypeStruct)
        self.rhs = rhs if is_shape else jnp.asarray(rhs)
        self._names = f"lhs={ArraySpec.of(self.lhs)} rhs={ArraySpec.of(self.rhs)}"
        if (self.lhs.ndim, self.rhs.ndim) != (2, rank):
            raise self.fail(shapes, self._names, "Use jax.vmap for further axes.")
        dtype = self.lhs.dtype.name
        if dtype not in DTYPES or self.rhs.dtype.name != dtype:
            raise self.fail(
                f"lhs and rhs must have one dtype among {', '.join(DTYPES)}",
                self._names,
                "Cast one of them.",
            )

    def fail(self, rule: str, got: Any, advice: str) -> ValueError:
        return ValueError(f"{self._op}: {rule}; got {got}. {advice}")

    def check_same(self, axis: str, lhs_axis: int, rhs_axis: int) -> None:
        if self.lhs.shape[lhs_axis] != self.rhs.shape[rhs_axis]:
            raise self.fail(
                f"lhs and rhs must have the same {axis}",
                self._names,
                f"It is axis {lhs_axis} of lhs and axis {rhs_axis} of rhs.",
            )

    def group_sizes(self, sizes: Any) -> jax.Array:
        """[E] int32. The values of numpy arrays are checked, others under debug."""
        spec = ArraySpec.of(sizes if hasattr(sizes, "dtype") else np.asarray(sizes))
        if spec.ndim != 1 or not jnp.issubdtype(spec.dtype, jnp.integer):
            raise self.fail(
                "group_sizes must be a vector of integers",
                spec,
                "Cast the counts to int32.",
            )
        if isinstance(self.lhs.shape[0], int):
            check_values(sizes, self._size_error)
        return jnp.asarray(sizes, jnp.int32)

    def _size_error(self, sizes: np.ndarray) -> ValueError | None:
        if (sizes < 0).any():
            i = int(np.argmax(sizes < 0))
            return self.fail(
                "group_sizes must be >= 0",
                f"{sizes[i]} at index {i}",
                "Count the rows of each group.",
            )
        total, rows = int(sizes.sum(dtype=np.int64)), self.lhs.shape[0]
        if total <= rows:
            return None
        lhs = ArraySpec.of(self.lhs)
        return self.fail(
            "sum(group_sizes) must be <= rows of lhs",
            f"{total} > {rows} (lhs {lhs})",
            "Pad lhs, or drop trailing groups.",
        )

    def group_ids(self, sizes: jax.Array, offset: Any, count: int) -> jax.Array:
        """[count] int32: which entry of group_sizes each local group has."""
        total = sizes.shape[0]
        if offset is None:
            if total != count:
                raise self.fail(
                    f"group_sizes must have an entry for each of the {count} groups",
                    f"{total} entries",
                    "Pass group_offset if only some of the groups are here.",
                )
            return jnp.arange(count, dtype=jnp.int32)
        offset = jnp.asarray(offset)
        if offset.ndim != 0 or not jnp.issubdtype(offset.dtype, jnp.integer):
            raise self.fail(
                "group_offset must be an integer scalar",
                ArraySpec.of(offset),
                "Pass the index of the first group that is here.",
            )
        if total < count:
            raise self.fail(
                f"with group_offset, group_sizes must have at least {count} entries, "
                "one for each group of all devices",
                f"{total} entries",
                "Gather the sizes of all devices.",
            )
        return offset.astype(jnp.int32) + jnp.arange(count, dtype=jnp.int32)

    def num_groups(self, sizes: jax.Array, offset: Any, count: int | None) -> int:
        if count is None and offset is None:
            return sizes.shape[0]
        if count is None or count < 0:
            raise self.fail(
                "num_groups must be an int >= 0 with group_offset",
                count,
                "Pass the number of groups that are here.",
            )
        return count

    def bias(self, bias: Any) -> dict[str, jax.Array]:
        """bias [G, N] and bias_owner [K] by name; nothing without a bias."""
        if bias is None:
            return {}
        bias = jnp.asarray(bias)
        g, k, n = self.rhs.shape
        if bias.shape != (g, n) or bias.dtype.name not in DTYPES:
            raise self.fail(
                f"bias must be floating, [G, N] = [{g}, {n}]",
                ArraySpec.of(bias),
                "A bias of all groups is added outside.",
            )
        owner = (jnp.arange(k) == 0).astype(jnp.float32)
        return {"bias": bias, "bias_owner": owner}

    def out_dtype(self, preferred: Any) -> str:
        if preferred is None:
            return self.lhs.dtype.name
        name = jnp.dtype(preferred).name
        if name not in DTYPES:
            raise self.fail(
                f"preferred_element_type must be among {', '.join(DTYPES)}",
                name,
                "Cast the result.",
            )
        return name


def quantized(rhs: Any) -> QArray | None:
    """The matrices as a QArray [G, K, N], or None if they are an array.

    Raises:
      ValueError: they are quantized in a way that ragged_dot does not take.
    """
    if not isinstance(rhs, QArray) and not hasattr(rhs, "qvalue"):
        return None
    try:
        weights = QArray.of(rhs)
    except ValueError as error:
        raise ValueError(f"ragged_dot: rhs: {error}") from error
    problem = weights.problem()
    if problem is not None:
        advice = "Make one with tokumx.quantize."
        raise ValueError(f"ragged_dot: rhs: {problem}. {advice}")
    if weights.ndim != 3:
        raise ValueError(
            f"ragged_dot: quantized rhs must be [G, K, N]; got {list(weights.shape)}. "
            "Use jax.vmap for further axes."
        )
    if weights.scales.shape[2] not in (1, weights.shape[2]):
        raise ValueError(
            "ragged_dot: columns of rhs must share one scale, or each have their own; "
            f"got rhs={list(weights.shape)} ({weights.qtype}) "
            f"scales={ArraySpec.of(weights.scales)}. Groups are along K: "
            "tokumx.quantize(w, axis=1, group_size=...)."
        )
    return weights if weights.packed_axis in (None, -2) else weights.unpacked()


def quantized_arrays(weights: QArray, lhs: jax.Array) -> dict[str, jax.Array]:
    """values [G, K or K / 2, N], scales and zero points [G, S, 1 or N] by name."""
    wide = jnp.promote_types(lhs.dtype, jnp.float32)
    count = weights.shape[0]

    def each(x: jax.Array) -> jax.Array:
        times = count // x.shape[0]
        return jnp.repeat(x, times, 0) if times > 1 else x

    arrays = {"values": weights.values, "scales": each(weights.scales.astype(wide))}
    if weights.zero_points is not None:
        arrays["zero_points"] = each(weights.zero_points_as_scales())
    return arrays


def as_one_problem(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Adds the problem axis."""
    return {name: x[None] for name, x in arrays.items()}
