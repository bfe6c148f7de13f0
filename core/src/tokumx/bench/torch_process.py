"""The other end of torch_worker.py: torch as a contestant in its own process."""

import contextlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp
import numpy as np

from tokumx.bench.case import Absent, InTorch
from tokumx.bench.records import Work
from tokumx.bench.timer import Remote

SCRIPT = Path(__file__).with_name("torch_worker.py")
_ANSWER_S = 600.0


class TorchError(RuntimeError):
    """The worker is gone, or could not do what it was asked."""


class TorchProcess:
    """A running worker. Its operands are those of the last `load`."""

    def __init__(self, python: str, threads: int, folder: Path):
        self._folder = folder
        self._log = (folder / "stderr.txt").open("w+")
        self._process = subprocess.Popen(
            # -I: this folder's modules must not shadow torch's imports.
            [python, "-I", str(SCRIPT), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.version = ""

    def start(self) -> None:
        """Waits until torch is imported; TorchError if it cannot be."""
        self.version = self._answer()["torch"]

    def load(
        self,
        contestant: InTorch,
        arrays: Mapping[str, Any],
        cotangent: Any,
        differentiable: tuple[str, ...],
    ) -> None:
        """Sends the operands of a case, bit for bit."""
        given = {n: np.asarray(x) for n, x in arrays.items()}
        out = np.asarray(cotangent)
        self._ask(
            do="load",
            operation=contestant.operation,
            options=dict(contestant.options),
            arrays={n: self._write(n, x) for n, x in given.items()},
            cotangent=self._write("cotangent", out),
            dtypes={n: x.dtype.name for n, x in given.items()}
            | {"out": out.dtype.name},
            differentiable=list(differentiable),
        )

    def results(self, work: Work) -> dict[str, np.ndarray]:
        """Runs once, and returns the output and gradients by name."""
        answer = self._ask(do="results", work=work, folder=str(self._folder))
        found = {n: np.load(path) for n, path in answer["files"].items()}
        if answer["dtype"] == "bfloat16":
            return {n: x.view(jnp.bfloat16) for n, x in found.items()}
        return found

    def timed(self, work: Work) -> Remote:
        return Remote(
            lambda repeats: self._ask(do="time", work=work, repeats=repeats)["seconds"]
        )

    def close(self) -> None:
        """Ends the worker, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _write(self, name: str, x: np.ndarray) -> str:
        path = self._folder / f"{name}.npy"
        np.save(path, x.view(np.uint16) if x.dtype == jnp.bfloat16 else x)
        return str(path)

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            _pipe(self._process.stdin).write(json.dumps(request).encode() + b"\n")
            _pipe(self._process.stdin).flush()
        except BrokenPipeError:
            raise TorchError(f"the worker ended: {self._last_words()}") from None
        answer = self._answer()
        if "error" in answer:
            raise TorchError(answer["error"])
        return answer

    def _answer(self) -> dict[str, Any]:
        stdout = _pipe(self._process.stdout)
        if not select.select([stdout], [], [], _ANSWER_S)[0]:
            raise TorchError(f"no answer within {_ANSWER_S:.0f} s")
        line = stdout.readline()
        if not line:
            raise TorchError(f"the worker ended: {self._last_words()}")
        return json.loads(line)

    def _last_words(self) -> str:
        self._process.wait(timeout=10)
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "the worker has no pipes"
    return pipe


def torch_python() -> str | None:
    """TORCH_PYTHON, or this Python if it has torch, or None."""
    given = os.environ.get("TORCH_PYTHON")
    if given:
        return given
    return sys.executable if importlib.util.find_spec("torch") else None


@contextlib.contextmanager
def torch_process(is_wanted: bool, threads: int) -> Iterator[TorchProcess | Absent]:
    """A worker, or why there is none."""
    python = torch_python()
    if not is_wanted:
        yield Absent("torch", "left out by --no-torch")
        return
    if python is None:
        yield Absent("torch", "TORCH_PYTHON names no Python that has torch")
        return
    if shutil.which(python) is None:
        yield Absent("torch", f"TORCH_PYTHON={python} is no program")
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = TorchProcess(python, threads, folder)
        stack.callback(process.close)
        try:
            process.start()
        except TorchError as error:
            yield Absent("torch", f"{python}: {error}")
            return
        yield process
