"""Checks the arguments and brings them to one canonical form.

Canonical: arrays keep the caller's shapes, under the names of pages.py;
absent ones are None. num_seqs is int32 []; key_scale and value_scale are [K]
or [1] where they are no page arrays.
"""

import numbers
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokumx.contract import ArraySpec
from tokumx.ops.ragged_paged_attention.pages import HEADS_MAJOR
from tokumx.ops.ragged_paged_attention.table_checks import Limits, check_tables

OP = "ragged_paged_attention"
_QUERY_DTYPES = ("float32", "bfloat16", "float16", "float64")
_CACHE_DTYPES = (*_QUERY_DTYPES, "int8", "float8_e4m3fn", "float8_e5m2")
_LAYOUTS = {
    "NHD": "[num_pages, page_size, K, dim]",
    "HND": "[num_pages, K, page_size, dim]",
}


def _fail(rule: str, got: str, advice: str) -> ValueError:
    return ValueError(f"{OP}: {rule}; got {got}. {advice}")


class Checked:
    """Query and cache, checked, and checks of the others against them."""

    def __init__(self, query: Any, key_cache: Any, value_cache: Any, layout: Any):
        if layout not in _LAYOUTS:
            meanings = ", ".join(f"{n!r} is {shape}" for n, shape in _LAYOUTS.items())
            raise _fail(
                f"cache_layout must be among {', '.join(map(repr, _LAYOUTS))}",
                repr(layout),
                f"{meanings}.",
            )
        self._layout = layout
        self._suffix = HEADS_MAJOR if layout == "HND" else ""
        self.query, self.key = jnp.asarray(query), jnp.asarray(key_cache)
        self.value = None if value_cache is None else jnp.asarray(value_cache)
        self._names = f"query={ArraySpec.of(self.query)} key_cache=" + (
            f"{ArraySpec.of(self.key)} value_cache="
            f"{None if self.value is None else ArraySpec.of(self.value)}"
        )
        self._check_ranks()
        self._check_dtypes()
        self._check_cache_shapes()
        self._check_heads()

    def _fail(self, rule: str, advice: str) -> ValueError:
        return _fail(rule, self._names, advice)

    def _check_ranks(self) -> None:
        caches = [x for x in (self.key, self.value) if x is not None]
        if self.query.ndim != 3 or any(x.ndim != 4 for x in caches):
            raise self._fail(
                "query must be [num_tokens, N, H], and the caches "
                f"{_LAYOUTS[self._layout]}",
                "Merge batch and length of query into tokens; stack the pages.",
            )

    def _check_dtypes(self) -> None:
        if self.query.dtype.name not in _QUERY_DTYPES:
            raise self._fail(
                f"query's dtype must be among {', '.join(_QUERY_DTYPES)}",
                "Cast it to one of them.",
            )
        for x in (self.key, self.value):
            if x is not None and x.dtype.name not in _CACHE_DTYPES:
                raise self._fail(
                    f"a cache's dtype must be among {', '.join(_CACHE_DTYPES)}",
                    "Store it in one of them.",
                )

    def _check_cache_shapes(self) -> None:
        h = self.query.shape[2]
        if self.value is None:
            if self.key.shape[3] <= h:
                raise self._fail(
                    "without value_cache, key_cache must hold key and value side by "
                    f"side, more than H = {h} in its last axis",
                    "Pass value_cache, or concatenate([key, value], axis=-1).",
                )
            return
        if self.key.shape[:3] != self.value.shape[:3]:
            raise self._fail(
                "key_cache and value_cache must have equal pages, page sizes and heads",
                "Lay out both in the same way.",
            )
        if self.key.shape[3] != h:
            raise self._fail(
                "query and key_cache must have one head_dim",
                "Project them to one size, or pass value_cache=None if key_cache "
                "holds both key and value.",
            )

    def _check_heads(self) -> None:
        n, k = self.query.shape[1], self.kv_heads
        if not k or n % k:
            raise self._fail(
                f"query heads must be a multiple of key heads ({n} % {k} != 0)",
                f"cache_layout={self._layout!r} is {_LAYOUTS[self._layout]}.",
            )

    @property
    def kv_heads(self) -> int:
        return self.key.shape[1 if self._suffix else 2]

    @property
    def page_size(self) -> int:
        return self.key.shape[2 if self._suffix else 1]

    def arrays(self, **given: Any) -> dict[str, jax.Array | None]:
        """All operands in canonical form."""
        starts, lengths, table = (
            given[n] for n in ("query_start_loc", "seq_lens", "page_table")
        )
        seq_lens = _int_array("seq_lens", lengths, {"max_seqs": None})
        rows = seq_lens.shape[0]
        arrays = {
            "query": self.query,
            **self._caches(),
            "query_start_loc": _int_array(
                "query_start_loc", starts, {"max_seqs + 1": rows + 1}
            ),
            "seq_lens": seq_lens,
            "page_table": _int_array(
                "page_table", table, {"max_seqs": rows, "max_pages_per_seq": None}
            ),
            "num_seqs": _count(given["num_seqs"]),
            "sinks": self._sinks(given["sinks"]),
            **self._scale("key_scale", given["key_scale"]),
            **self._scale("value_scale", given["value_scale"]),
        }
        left, _ = _window(given["window"])
        limits = Limits(self.query.shape[0], self.key.shape[0], self.page_size, left)
        check_tables(OP, starts, lengths, table, given["num_seqs"], limits)
        return arrays

    def _caches(self) -> dict[str, jax.Array]:
        if self.value is None:
            return {f"kv_cache{self._suffix}": self.key}
        return {
            f"key_cache{self._suffix}": self.key,
            f"value_cache{self._suffix}": self.value,
        }

    def _sinks(self, x: Any) -> jax.Array | None:
        if x is None:
            return None
        x = jnp.asarray(x)
        n = self.query.shape[1]
        if x.shape != (n,) or not jnp.issubdtype(x.dtype, jnp.floating):
            raise _fail(
                f"sinks must be floating [N] = [{n}]",
                f"sinks={ArraySpec.of(x)}",
                "Pass one logit for each query head.",
            )
        return x.astype(jnp.promote_types(self.query.dtype, jnp.float32))

    def _scale(self, name: str, x: Any) -> dict[str, jax.Array]:
        """A scale under the name that says what it belongs to."""
        if x is None:
            return {}
        x = jnp.asarray(x)
        accumulate = jnp.promote_types(self.query.dtype, jnp.float32)
        slots = self.key.shape[:3]
        is_number = jnp.issubdtype(x.dtype, jnp.floating) or x.ndim == 0
        if is_number and x.shape in ((), (1,), (self.kv_heads,)):
            return {name: x.reshape(-1).astype(accumulate)}
        if is_number and x.shape == slots:
            return {f"{name}_pages{self._suffix}": x}
        raise _fail(
            f"{name} must be a number, or floating [K] = [{self.kv_heads}], or of the "
            f"cache's shape without its last axis, [{', '.join(map(str, slots))}]",
            f"{name}={ArraySpec.of(x)}",
            "Give each cache, each head or each slot of each head one scale.",
        )

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
            "scale": float(self.query.shape[2] ** -0.5 if scale is None else scale),
            "is_causal": bool(given["is_causal"]),
            "window": _window(given["window"]),
            "logits_soft_cap": None if cap is None else float(cap),
        }


def _int_array(name: str, x: Any, shape: Mapping[str, Any]) -> jax.Array:
    """x as int32 of that shape: sizes by what they mean, None for any."""
    x = jnp.asarray(x)
    has_shape = x.ndim == len(shape) and all(
        want is None or d == want
        for d, want in zip(x.shape, shape.values(), strict=True)
    )
    if x.dtype != jnp.int32 or not has_shape:
        sizes = ", ".join(
            label if want is None else f"{label} = {want}"
            for label, want in shape.items()
        )
        raise _fail(
            f"{name} must be int32 [{sizes}]",
            f"{name}={ArraySpec.of(x)}",
            "Cast and reshape it.",
        )
    return x


def _count(x: Any) -> jax.Array | None:
    if x is None:
        return None
    x = jnp.asarray(x, jnp.int32 if isinstance(x, int) else None)
    if x.shape not in ((), (1,)) or x.dtype != jnp.int32:
        raise _fail(
            "num_seqs must be an int or int32 []",
            f"num_seqs={ArraySpec.of(x)}",
            "Pass how many rows of seq_lens are in use.",
        )
    return x.reshape(())


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
                "A window of W keys that ends at the token is (W - 1, 0).",
            )
    return (
        None if left is None else int(left),
        None if right is None else int(right),
    )
