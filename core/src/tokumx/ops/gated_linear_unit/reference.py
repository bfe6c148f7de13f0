"""`xla`: the definition of gated linear units, in plain jnp."""

from collections.abc import Sequence

from tokumx.contract import Arrays, CallSpec, DeviceSpec, Direction, NoConfig, Outputs
from tokumx.contract import Config as BaseConfig
from tokumx.ops.gated_linear_unit.gating import gated
from tokumx.ops.gated_linear_unit.products import pre_activations, product

LOCAL = False
Config = NoConfig


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
    return []


def forward(arrays: Arrays, call: CallSpec, config: BaseConfig) -> Outputs:
    del config
    dtype = arrays["x"].dtype
    gate, up = pre_activations(arrays)
    hidden = gated(gate, up, call).astype(dtype)
    out = hidden
    if "down_weight" in arrays:
        out = product("...f,fo->...o", hidden, arrays["down_weight"])
    return {"out": out, "gate": gate.astype(dtype), "up": up.astype(dtype)}
