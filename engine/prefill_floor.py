"""The least time in which a device could compute a prompt's new tokens, for a dense model."""

from dataclasses import dataclass

from deeproot.kernels.cost import Cost, attended, floor_seconds
from deeproot.kernels.devices import DEVICES, Device

DEVICE_NAMES = tuple(DEVICES)
_BYTES_A_WEIGHT = 2
_FLOP_A_WEIGHT = 2
_FLOP_A_PAIR_AND_UNIT = 4


@dataclass(frozen=True, slots=True)
class DenseModel:
    """What the floor needs of a model. `parameters`: weights that every token passes."""

    parameters: int
    layers: int
    d_model: int

    def __post_init__(self) -> None:
        for name in ("parameters", "layers", "d_model"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1")


def prefill_floor_seconds(computed: int, cached: int, model: DenseModel, device: str) -> float:
    """Seconds for `computed` tokens behind `cached` ones in bf16: each weight read once, two FLOP a weight and token,
    four FLOP a hidden unit, layer and (query, key) pair under the causal mask. 0 for no tokens.

    Raises ValueError if there is no such device.
    """
    if device not in DEVICES:
        raise ValueError(f"device is {device!r}; give one of {', '.join(DEVICE_NAMES)}")
    if computed <= 0:
        return 0.0
    named: Device = DEVICES[device]
    flops = _FLOP_A_WEIGHT * model.parameters * computed
    flops += _FLOP_A_PAIR_AND_UNIT * model.layers * model.d_model * attended(computed, cached)
    return floor_seconds(Cost(bytes=_BYTES_A_WEIGHT * model.parameters, flops=flops), named)
