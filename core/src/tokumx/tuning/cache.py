"""Writes tuned records to the user's cache, a SQLite file.

SQLite's rollback journal makes each install one transaction: a process that
is killed in the middle leaves the old records, and two that write at once wait
for each other.
"""

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from tokumx.dispatch.tuned import (
    CACHE_TABLE,
    TunedRecord,
    cache_path,
    set_cache_aside,
)

_WAIT_S = 30.0


def install(records: Sequence[TunedRecord], path: Path | None = None) -> Path:
    """Adds records to the cache; a record of the same call replaces the old one.

    A damaged cache is set aside, with a TuningFileWarning, and begun anew.

    Args:
      records: what to write.
      path: the cache file; None for the user's (see TOKUMX_CACHE_DIR).

    Returns:
      The file written.

    Raises:
      OSError: the file or its folder cannot be written.
    """
    path = cache_path() if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(records, path)
    except sqlite3.OperationalError as error:
        raise OSError(f"tokumx: tuned cache {path} cannot be written; {error}") from (
            error
        )
    except sqlite3.DatabaseError as error:
        set_cache_aside(path, error)
        _write(records, path)
    return path


def _write(records: Sequence[TunedRecord], path: Path) -> None:
    rows = [(json.dumps(r.identity), r.model_dump_json()) for r in records]
    with (
        contextlib.closing(sqlite3.connect(path, timeout=_WAIT_S)) as db,
        db,  # commits, or rolls back on an exception
    ):
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {CACHE_TABLE} "
            "(identity TEXT PRIMARY KEY, payload TEXT NOT NULL)"
        )
        db.executemany(
            f"INSERT INTO {CACHE_TABLE} VALUES (?, ?) "
            "ON CONFLICT (identity) DO UPDATE SET payload = excluded.payload",
            rows,
        )
