"""What the implementations here have in common: nothing to tune, no refusal."""

from collections.abc import Sequence

from tokumx.contract import CallSpec, DeviceSpec, Direction, NoConfig

Config = NoConfig
LOCAL = False


def unsupported(call: CallSpec, device: DeviceSpec) -> str | None:
    del call, device
    return None


def heuristic_config(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> NoConfig:
    del call, device, direction
    return NoConfig()


def search_space(
    call: CallSpec, device: DeviceSpec, direction: Direction
) -> Sequence[NoConfig]:
    del call, device, direction
    return [NoConfig()]
