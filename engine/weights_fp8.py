"""Checkpoints whose linear weights are e4m3 with a float scale a tile, read back to floating point on the CPU."""

from collections.abc import Mapping

import torch

from deeproot.engine.config_quant import WeightTile
from deeproot.engine.kv_pool import FP8
from deeproot.engine.weights import Shape, TensorStore, WeightError

_SCALE = "_scale_inv"
"""What the name of a weight's scales ends with. Despite the name weights are multiplied by them."""


class TiledFP8Store:
    """See ScaledStore: a store with scales, as one without. Weights that are not e4m3 pass as they are."""

    def __init__(self, store: TensorStore, tile: WeightTile) -> None:
        """Raises WeightError, which names the tensor, for scales that do not fit their weight."""
        self._store = store
        self._tile = tile
        shapes = store.shapes
        self._scaled = {name for name in shapes if name + _SCALE in shapes and name.endswith(".weight")}
        scales = {name + _SCALE for name in self._scaled}
        self.shapes: Mapping[str, Shape] = {
            name: shape for name, shape in shapes.items() if name not in scales
        }
        for name in self._scaled:
            self._check(name, shapes[name], shapes[name + _SCALE])

    def _check(self, name: str, shape: Shape, scales: Shape) -> None:
        wanted = tuple(-(-n // tile) for n, tile in zip(shape, self._tile, strict=False))
        if len(shape) != 2 or tuple(scales) != wanted:
            raise WeightError(
                f"tensor {name + _SCALE!r} has shape {list(scales)}; {list(shape)} in tiles of {list(self._tile)} "
                f"needs {list(wanted)}"
            )

    def read(self, name: str) -> torch.Tensor:
        tensor = self._store.read(name)
        if name in self._scaled:
            return dequantise(tensor, self._store.read(name + _SCALE), self._tile)
        if tensor.dtype == FP8:
            raise WeightError(f"tensor {name!r} is e4m3 but {name + _SCALE!r} is missing")
        return tensor

    def read_scaled(self, name: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        if name not in self._scaled:
            return None
        return self._store.read(name), self._store.read(name + _SCALE)


def dequantise(weight: torch.Tensor, scales: torch.Tensor, tile: WeightTile) -> torch.Tensor:
    """weight: `[n, m]`; scales: `[ceil(n / tile[0]), ceil(m / tile[1])]`. Returns `[n, m]` float32."""
    rows, columns = weight.shape
    wide = scales.float().repeat_interleave(tile[1], 1)[:, :columns]
    return weight.float().mul_(wide.repeat_interleave(tile[0], 0)[:rows])
