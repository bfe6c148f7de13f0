"""DeviceSpec: the device a call is decided for, which may not be here."""

import contextlib
import contextvars
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Platform ("cpu", "gpu", "tpu") and kind ("NVIDIA H200", "TPU v6 lite").

    On a CPU the kind names the processor and the cores this process may
    use, since jax calls every processor "cpu".
    """

    platform: str
    kind: str

    @property
    def slug(self) -> str:
        """The kind as a file name: `amd-epyc-9b45-2-cores`."""
        return re.sub(r"[^a-z0-9]+", "-", self.kind.lower()).strip("-")

    def __str__(self) -> str:
        return f"{self.kind} ({self.platform})"


@functools.cache
def _cpu_kind() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = " ".join(model.group(1).split()) if model else "CPU"
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    return f"{name} {cores} cores"


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of this machine's processor, as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return frozenset(flags.group(1).split()) if flags else frozenset()


_override: contextvars.ContextVar[DeviceSpec | None] = contextvars.ContextVar(
    "tokumx_device", default=None
)


def current_device() -> DeviceSpec:
    """The device that decisions are made for: jax's default, or the override."""
    override = _override.get()
    if override is not None:
        return override
    default = jax.config.jax_default_device
    if isinstance(default, str):
        default = jax.devices(default)[0]
    device = default or jax.devices()[0]
    if device.platform == "cpu":
        return DeviceSpec("cpu", _cpu_kind())
    platform = "gpu" if device.platform in ("cuda", "rocm") else device.platform
    return DeviceSpec(platform, device.device_kind)


@contextlib.contextmanager
def use_device(device: DeviceSpec) -> Iterator[DeviceSpec]:
    """Makes decisions for a device that is not here (ahead-of-time work).

    Only the choice changes, not where arrays live. A function already traced
    by jax.jit keeps the decision it was traced with.
    """
    token = _override.set(device)
    try:
        yield device
    finally:
        _override.reset(token)
