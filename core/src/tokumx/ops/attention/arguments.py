"""Checks attention's arguments and brings them to one canonical form.

Canonical: every array has the batch as its first axis, of size B or 1;
absent arrays are None; query_offset is absent when it is the int 0.
"""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import ArraySpec
from tokumx.debug import check_values

OP = "dot_product_attention"
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def _fail(rule: str, got: str, advice: str) -> ValueError:
    return ValueError(f"{OP}: {rule}; got {got}. {advice}")


class Checked:
    """The three main operands, checked, and checks of the others against them."""

    def __init__(self, query: Any, key: Any, value: Any):
        query, key, value = (jnp.asarray(x) for x in (query, key, value))
        self.is_unbatched = query.ndim == 3
        self._names = (
            f"query={ArraySpec.of(query)} key={ArraySpec.of(key)} "
            f"value={ArraySpec.of(value)}"
        )
        if query.ndim not in (3, 4) or not query.ndim == key.ndim == value.ndim:
            raise self._fail(
                "query, key and value must all be [B, length, heads, dim] or all "
                "[length, heads, dim]",
                "Add or merge batch dimensions.",
            )
        if self.is_unbatched:
            query, key, value = query[None], key[None], value[None]
        self.query, self.key, self.value = query, key, value
        self._check_dtypes()
        self._check_shapes()

    def _fail(self, rule: str, advice: str) -> ValueError:
        return _fail(rule, self._names, advice)

    def _check_dtypes(self) -> None:
        dtype = self.query.dtype
        if not dtype == self.key.dtype == self.value.dtype:
            raise self._fail(
                "query, key and value must have one dtype",
                "Cast them, e.g. key.astype(query.dtype).",
            )
        if dtype.name not in _DTYPES:
            raise self._fail(
                f"dtype must be among {', '.join(_DTYPES)}",
                "Cast to one of them.",
            )

    def _check_shapes(self) -> None:
        query, key, value = self.query, self.key, self.value
        if not query.shape[0] == key.shape[0] == value.shape[0]:
            raise self._fail("batch sizes must be equal", "Repeat the smaller one.")
        if key.shape[1:3] != value.shape[1:3]:
            raise self._fail(
                "key and value must have equal lengths and heads",
                "Slice or pad value to key.",
            )
        if query.shape[3] != key.shape[3]:
            raise self._fail(
                "query and key must have one head_dim", "Project them to one size."
            )
        if not key.shape[2] or query.shape[2] % key.shape[2]:
            raise self._fail(
                "query heads must be a multiple of key heads "
                f"({query.shape[2]} % {key.shape[2]} != 0)",
                "Repeat or drop heads.",
            )

    @property
    def sizes(self) -> tuple[Any, int, int, int]:
        """B, N, T, S."""
        b, t, n, _ = self.query.shape
        return b, n, t, self.key.shape[1]

    def arrays(self, **given: Any) -> dict[str, jax.Array | None]:
        """All operands in canonical form, absent ones None."""
        _, _, t, s = self.sizes
        query_segments, key_segments = self._pair(
            "segment_ids", given["query_segment_ids"], given["key_value_segment_ids"]
        )
        query_positions, key_positions = self._pair(
            "positions", given["query_positions"], given["key_value_positions"]
        )
        return {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            "bias": self._logits_like("bias", given["bias"]),
            "mask": self._logits_like("mask", given["mask"]),
            "query_seq_lengths": self._lengths(
                "query_seq_lengths", given["query_seq_lengths"], t
            ),
            "key_value_seq_lengths": self._lengths(
                "key_value_seq_lengths", given["key_value_seq_lengths"], s
            ),
            "query_offset": self._offset(given["query_offset"]),
            "query_segment_ids": query_segments,
            "key_value_segment_ids": key_segments,
            "query_positions": query_positions,
            "key_value_positions": key_positions,
            "sinks": self._sinks(given["sinks"]),
            **self._dropout(given["dropout_rate"], given["dropout_key"]),
        }

    def _logits_like(self, name: str, x: Any) -> jax.Array | None:
        if x is None:
            return None
        x = jnp.asarray(x)
        spec = ArraySpec.of(x)
        is_right = (
            x.dtype == bool if name == "mask" else jnp.issubdtype(x.dtype, jnp.floating)
        )
        if not is_right:
            kind = "bool" if name == "mask" else "floating"
            other = "bias" if name == "mask" else "mask"
            raise _fail(
                f"{name} must be {kind}", f"{name}={spec}", f"Pass it as {other}?"
            )
        if x.ndim not in (3, 4):
            raise self._not_broadcastable(name, spec)
        x = x[None] if x.ndim == 3 else x
        if any(d not in (1, full) for d, full in zip(x.shape, self.sizes, strict=True)):
            raise self._not_broadcastable(name, spec)
        return x

    def _not_broadcastable(self, name: str, spec: ArraySpec) -> ValueError:
        sizes = ", ".join(str(d) for d in self.sizes)
        return _fail(
            f"{name} must be 3-D or 4-D and broadcast to [B, N, T, S] = [{sizes}]",
            f"{name}={spec}",
            "Give every axis its full size or 1.",
        )

    def _lengths(self, name: str, x: Any, longest: int) -> jax.Array | None:
        if x is None:
            return None
        b = self.sizes[0]
        _check_lengths(name, x, longest)
        return self._int_array(name, x, (b,), f"[B] = [{b}]")

    def _offset(self, x: Any) -> jax.Array | None:
        if isinstance(x, numbers.Integral):
            return None if x == 0 else jnp.full((1,), int(x), jnp.int32)
        b = self.sizes[0]
        if jnp.ndim(x) == 0:
            x = jnp.asarray(x)[None]
            return self._int_array("query_offset", x, (1,), "a scalar or [B]")
        return self._int_array("query_offset", x, (b,), f"a scalar or [B] = [{b}]")

    def _pair(
        self, kind: str, query: Any, key: Any
    ) -> tuple[jax.Array | None, jax.Array | None]:
        """Ids or positions of both sides, where one may stand for both."""
        if query is None and key is None:
            return None, None
        b, _, t, s = self.sizes
        if query is None or key is None:
            if t != s:
                missing = "query" if query is None else "key_value"
                raise _fail(
                    f"{missing}_{kind} must be given when query and key lengths differ",
                    f"{missing}_{kind}=None with T={t}, S={s}",
                    f"Pass it as [B, {t if query is None else s}] int32.",
                )
            query = key if query is None else query
            key = query if key is None else key
        return (
            self._rows(f"query_{kind}", query, b, t),
            self._rows(f"key_value_{kind}", key, b, s),
        )

    def _rows(self, name: str, x: Any, b: int, length: int) -> jax.Array:
        x = jnp.asarray(x)
        x = x[None] if x.ndim == 1 else x
        rows = 1 if x.ndim == 2 and x.shape[0] == 1 else b
        return self._int_array(name, x, (rows, length), f"[B, {length}]")

    def _int_array(
        self, name: str, x: Any, shape: tuple[int, ...], want: str
    ) -> jax.Array:
        x = jnp.asarray(x)
        if x.dtype != jnp.int32 or x.shape != shape:
            raise _fail(
                f"{name} must be int32 {want}",
                f"{name}={ArraySpec.of(x)}",
                "Cast and reshape it.",
            )
        return x

    def _sinks(self, x: Any) -> jax.Array | None:
        if x is None:
            return None
        x = jnp.asarray(x)
        n = self.sizes[1]
        if x.shape != (n,) or not jnp.issubdtype(x.dtype, jnp.floating):
            raise _fail(
                f"sinks must be floating [N] = [{n}]",
                f"sinks={ArraySpec.of(x)}",
                "Pass one logit for each query head.",
            )
        accumulate = jnp.promote_types(self.query.dtype, jnp.float32)
        return x.astype(accumulate)[None]

    def _dropout(self, rate: Any, key: Any) -> dict[str, jax.Array | None]:
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise _fail(
                "dropout_rate must be a number in [0, 1)",
                f"{rate!r}",
                "Use 0 to turn dropout off.",
            )
        if rate == 0:
            return {"dropout_key": None, "dropout_heads": None}
        if key is None:
            raise _fail(
                "dropout_key must be given when dropout_rate > 0",
                "None",
                "Pass jax.random.key(...), or dropout_rate=0.",
            )
        b, n, _, _ = self.sizes
        # One counter a (batch row, head), so that a device that holds a part
        # of them draws the same bits as one that holds them all.
        heads = jnp.arange(b, dtype=jnp.uint32)[:, None] * jnp.uint32(n)
        heads = heads + np.arange(n, dtype=np.uint32)
        return {"dropout_key": _key_words(key), "dropout_heads": heads}

    def options(self, **given: Any) -> dict[str, Any]:
        """The static options, checked."""
        scale, cap = given["scale"], given["logits_soft_cap"]
        _check_static_number("scale", scale)
        _check_static_number("logits_soft_cap", cap)
        if cap is not None and cap <= 0:
            raise _fail(
                "logits_soft_cap must be > 0", f"{cap}", "Use None for no soft cap."
            )
        return {
            "scale": float(self.query.shape[3] ** -0.5 if scale is None else scale),
            "is_causal": bool(given["is_causal"]),
            "window": _window(given["window"]),
            "logits_soft_cap": None if cap is None else float(cap),
            "dropout_rate": float(given["dropout_rate"]),
        }


def _key_words(key: Any) -> jax.Array:
    """[1, 2] uint32 from a typed or a raw key of any size."""
    key = jnp.asarray(key)
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = jax.random.key_data(key) if is_typed else key
    if words.ndim != 1 or words.dtype != jnp.uint32:
        raise _fail(
            "dropout_key must be one jax.random key",
            f"dropout_key={ArraySpec.of(words)}",
            "Pass jax.random.key(seed), not a batch of keys.",
        )
    return words[None, -2:]


def _check_static_number(name: str, x: Any) -> None:
    if x is not None and not isinstance(x, int | float | np.number):
        raise _fail(
            f"{name} must be a Python number",
            type(x).__name__,
            "It is part of the compiled program; multiply query instead to vary it.",
        )


def _window(window: Any) -> tuple[int | None, int | None]:
    left, right = window if isinstance(window, tuple) else (window, window)
    for side in (left, right):
        if side is None:
            continue
        if not isinstance(side, numbers.Integral) or side < 0:
            raise _fail(
                "local_window_size must be ints >= 0 or None",
                f"{window!r}",
                "A window of W keys that ends at the query is (W - 1, 0).",
            )
    return (
        None if left is None else int(left),
        None if right is None else int(right),
    )


def _check_lengths(name: str, x: Any, longest: Any) -> None:
    def find_error(values: np.ndarray) -> ValueError | None:
        wrong = values[(values < 0) | (values > longest)]
        if not wrong.size:
            return None
        return _fail(
            f"{name} must be in [0, {longest}]",
            f"{wrong[0]}",
            "Clip it to the array's length.",
        )

    if isinstance(longest, int):
        check_values(x, find_error)
