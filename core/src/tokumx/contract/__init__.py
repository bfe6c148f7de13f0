"""What ops, implementations and calls are, independent of any one op."""

from tokumx.contract.call_spec import ArraySpec, CallSpec
from tokumx.contract.config import DIRECTIONS, Config, Configs, Direction, NoConfig
from tokumx.contract.device import DeviceSpec, cpu_flags, current_device, use_device
from tokumx.contract.implementation import Arrays, Implementation, Outputs
from tokumx.contract.op_spec import OpSpec, Ranking

__all__ = [
    "DIRECTIONS",
    "ArraySpec",
    "Arrays",
    "CallSpec",
    "Config",
    "Configs",
    "DeviceSpec",
    "Direction",
    "Implementation",
    "NoConfig",
    "OpSpec",
    "Outputs",
    "Ranking",
    "cpu_flags",
    "current_device",
    "use_device",
]
