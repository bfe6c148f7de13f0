"""TuningResult: what a search found, to keep, share and switch on."""

import contextlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tokumx.dispatch.tuned import (
    TunedFile,
    TunedRecord,
    activated,
    read_tuned_file,
)
from tokumx.tuning.cache import install
from tokumx.tuning.trial import Trial


@dataclass(frozen=True)
class TuningResult:
    """Tuned records, and the trials behind them where they were run here.

    Use as a context manager to put the records before every other source:

        with tokumx.autotune(step, params, batch):
            compiled = jax.jit(step).lower(params, batch).compile()
    """

    records: tuple[TunedRecord, ...]
    trials: tuple[Trial, ...] = ()
    _active: list[contextlib.AbstractContextManager[None]] = field(
        default_factory=list, repr=False, compare=False
    )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the records as JSON; a crash leaves the old file whole."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = TunedFile(records=list(self.records)).model_dump_json(indent=1)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TuningResult":
        """The records of a saved file.

        Raises:
          ValueError: the file is damaged, or no tuned file.
          OSError: it cannot be read.
        """
        return cls(tuple(read_tuned_file(path)))

    def merge(self, *others: "TuningResult") -> "TuningResult":
        """All records; of two for the same call and jax the faster one stays."""
        best: dict[tuple[str, ...], TunedRecord] = {}
        for r in _chain(self, *others):
            key = (*r.identity, r.jax_version)
            if key not in best or r.time_us < best[key].time_us:
                best[key] = r
        trials = tuple(t for result in (self, *others) for t in result.trials)
        return TuningResult(tuple(best.values()), trials)

    def install(self) -> Path:
        """Adds the records to the user's cache, where every process finds them."""
        return install(self.records)

    def __enter__(self) -> "TuningResult":
        context = activated(self.records)
        context.__enter__()
        self._active.append(context)
        return self

    def __exit__(self, *exception: object) -> None:
        self._active.pop().__exit__(None, None, None)

    def __str__(self) -> str:
        if not self.records:
            return "nothing was tuned"
        return "\n".join(_line(r) for r in self.records)


def _chain(*results: TuningResult) -> Iterable[TunedRecord]:
    for result in results:
        yield from result.records


def _line(r: TunedRecord) -> str:
    config = " ".join(f"{n}={v}" for n, v in r.config.items()) or "-"
    gain = r.default_time_us / r.time_us
    return (
        f"{r.call_spec}\n  {r.implementation} {r.direction}: {config}  "
        f"{r.time_us:.1f} us +- {r.spread_us:.1f}, {gain:.2f}x over the default"
    )
