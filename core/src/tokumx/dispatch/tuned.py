"""Tuned records: what was measured, where it is kept, how it is looked up.

This module only reads. Layers, first hit wins: records activated in this
thread (`with result:`), files named by TOKUMX_TUNED, the user's cache, files
shipped with the package. Within a layer an exact shape beats the nearest
bucket, where every dimension is rounded up to a power of two and float
options count only as given or not.
"""

import contextlib
import contextvars
import functools
import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jax
import platformdirs
import pydantic

from tokumx.contract import CallSpec, DeviceSpec, Direction
from tokumx.errors import TuningFileWarning

FORMAT = "tokumx-tuned"
FORMAT_VERSION = 1
CACHE_TABLE = "tuned"
_CACHE_TIMEOUT_S = 5.0


class TunedRecord(pydantic.BaseModel):
    """The best config found for one call, implementation and direction.

    Times are medians in microseconds; spread is the median absolute
    deviation. `default_time_us` is the heuristic config's, in the same run.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    call: dict[str, Any]
    device: str
    implementation: str
    direction: Direction
    config: dict[str, Any]
    time_us: pydantic.PositiveFloat
    spread_us: pydantic.NonNegativeFloat
    default_time_us: pydantic.PositiveFloat
    jax_version: str
    tokumx_version: str

    @pydantic.field_validator("call")
    @classmethod
    def _call_is_readable(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            CallSpec.from_json(value)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a call: {error!r}") from error
        return value

    @functools.cached_property
    def call_spec(self) -> CallSpec:
        return CallSpec.from_json(self.call)

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Two records of one identity answer the same question."""
        return (self.device, self.call_spec.key, self.implementation, self.direction)


class TunedFile(pydantic.BaseModel):
    """The JSON form of a set of records."""

    model_config = pydantic.ConfigDict(extra="forbid")

    format: Literal["tokumx-tuned"] = FORMAT
    version: Literal[1] = FORMAT_VERSION
    records: list[TunedRecord]


def read_tuned_file(path: str | os.PathLike[str]) -> list[TunedRecord]:
    """The records of a JSON file.

    Raises:
      ValueError: the file is not one that tokumx wrote, or is damaged.
      OSError: it cannot be read.
    """
    text = Path(path).read_bytes()
    try:
        return TunedFile.model_validate_json(text).records
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "the file"
        raise ValueError(
            f"tokumx: {path} is not a readable tuned file; got {first['msg']} "
            f"at {where}. Delete it, or write it again with tokumx.autotune."
        ) from error


def cache_path() -> Path:
    """The user's cache file; its folder can be set by TOKUMX_CACHE_DIR."""
    folder = os.environ.get("TOKUMX_CACHE_DIR")
    return (Path(folder) if folder else _default_folder()) / "tuned.sqlite3"


@functools.cache
def _default_folder() -> Path:
    return Path(platformdirs.user_cache_dir("tokumx"))


def bucket_key(call: CallSpec) -> str:
    """Equal for calls that may share a config when none is exact."""
    arrays = {
        name: [[_bucket(d) for d in spec.shape], spec.dtype]
        for name, spec in call.arrays
    }
    options = {
        name: "given" if isinstance(value, float) else value
        for name, value in call.options
    }
    return json.dumps([call.op, arrays, options], sort_keys=True)


def _bucket(dim: int | str) -> int | str:
    return dim if isinstance(dim, str) else 1 << max(dim - 1, 0).bit_length()


class TunedTable:
    """Records of one layer, indexed by exact and by bucketed call."""

    def __init__(self, name: str, records: Iterable[TunedRecord]):
        self.name = name
        self.records = tuple(records)
        self._exact: dict[tuple[str, str], list[TunedRecord]] = {}
        self._near: dict[tuple[str, str], list[TunedRecord]] = {}
        for r in self.records:
            call = r.call_spec
            self._exact.setdefault((r.device, call.key), []).append(r)
            self._near.setdefault((r.device, bucket_key(call)), []).append(r)

    def matches(self, call: CallSpec, device: str) -> tuple[list[TunedRecord], bool]:
        """Records for the call, exact ones if any, and whether they are."""
        if not self.records:
            return [], True
        exact = self._exact.get((device, call.key))
        if exact:
            return exact, True
        return self._near.get((device, bucket_key(call)), []), False


@dataclass(frozen=True)
class Found:
    """A record that answers a look-up, and where it came from."""

    record: TunedRecord
    source: str


def find(
    layers: Sequence[TunedTable],
    call: CallSpec,
    device: DeviceSpec,
    implementation: str,
    direction: Direction,
) -> tuple[Found | None, str]:
    """The record to use, and a note on a stale one that was passed over."""
    note = ""
    for table in layers:
        records, exact = table.matches(call, device.kind)
        for r in records:
            if (r.implementation, r.direction) != (implementation, direction):
                continue
            if r.jax_version != jax.__version__:
                note = f"; stale record of jax {r.jax_version} in {table.name} not used"
                continue
            nearness = "exact shape" if exact else f"nearest bucket, {r.call_spec}"
            return Found(r, f"tuned: {table.name}, {nearness}"), note
    return None, note


def fastest_measured(
    layers: Sequence[TunedTable], call: CallSpec, device: DeviceSpec
) -> list[tuple[str, float]]:
    """Implementations with measured forward times, fastest first."""
    for table in layers:
        records, _ = table.matches(call, device.kind)
        times = [
            (r.implementation, r.time_us)
            for r in records
            if r.direction == "forward" and r.jax_version == jax.__version__
        ]
        if len(times) > 1:
            return sorted(times, key=lambda item: item[1])
    return []


_active: contextvars.ContextVar[tuple[TunedTable, ...]] = contextvars.ContextVar(
    "tokumx_tuned", default=()
)


@contextlib.contextmanager
def activated(records: Sequence[TunedRecord]) -> Iterator[None]:
    """Puts records before every other layer, in this thread or task.

    A function already traced by jax.jit keeps the configs it was traced with.
    """
    token = _active.set((TunedTable("active result", records), *_active.get()))
    try:
        yield
    finally:
        _active.reset(token)


def tables() -> tuple[TunedTable, ...]:
    """Every layer, in order of precedence."""
    return (*_active.get(), *_named_files(), _user_cache(), _shipped())


def _named_files() -> list[TunedTable]:
    paths = os.environ.get("TOKUMX_TUNED", "")
    return [_named_file(p) for p in paths.split(os.pathsep) if p]


@functools.cache
def _named_file(path: str) -> TunedTable:
    try:
        return TunedTable(path, read_tuned_file(path))
    except (ValueError, OSError) as error:
        warnings.warn(
            f"TOKUMX_TUNED: {path} is skipped. {error}", TuningFileWarning, stacklevel=2
        )
        return TunedTable(path, [])


@functools.cache
def _shipped() -> TunedTable:
    records: list[TunedRecord] = []
    for op in resources.files("tokumx.ops").iterdir():
        folder = op / "tuned"
        if folder.is_dir():
            for file in folder.iterdir():
                if file.name.endswith(".json"):
                    records += TunedFile.model_validate_json(file.read_bytes()).records
    return TunedTable("shipped with tokumx", records)


def _user_cache() -> TunedTable:
    path = cache_path()
    try:
        stat = path.stat()
    except OSError:
        return _empty_cache
    return _read_cache(str(path), stat.st_mtime_ns, stat.st_size)


_empty_cache = TunedTable("user cache", [])


@functools.lru_cache(maxsize=4)
def _read_cache(path: str, mtime_ns: int, size: int) -> TunedTable:
    del mtime_ns, size  # only there to notice a new version of the file
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_CACHE_TIMEOUT_S)
        ) as db:
            if not db.execute(
                "SELECT 1 FROM sqlite_master WHERE name = ?", (CACHE_TABLE,)
            ).fetchall():  # a writer is about to create it
                return _empty_cache
            rows = db.execute(f"SELECT payload FROM {CACHE_TABLE}").fetchall()
        records = [TunedRecord.model_validate_json(payload) for (payload,) in rows]
    except sqlite3.OperationalError as error:
        warnings.warn(
            f"tokumx: tuned cache {path} cannot be read now ({error}); "
            "heuristics are used instead.",
            TuningFileWarning,
            stacklevel=2,
        )
        return _empty_cache
    except (sqlite3.DatabaseError, pydantic.ValidationError) as error:
        set_cache_aside(Path(path), error)
        return _empty_cache
    return TunedTable("user cache", records)


def set_cache_aside(path: Path, error: Exception) -> None:
    """Renames a damaged cache, so that nothing is lost, and says so."""
    aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
    try:
        path.rename(aside)
        outcome = f"was set aside as {aside}"
    except OSError as rename_error:
        outcome = f"cannot be set aside ({rename_error})"
    reason = str(error).splitlines()[0]
    warnings.warn(
        f"tokumx: tuned cache {path} is damaged ({reason}) and {outcome}; "
        "heuristics are used instead. Run tokumx.autotune to fill it again.",
        TuningFileWarning,
        stacklevel=3,
    )
