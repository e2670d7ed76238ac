"""Where a model's constructor gets its tensors from.

A constructor asks a WeightSource for each tensor by its Hugging Face name and the shape that it must have. After
construction `finish` refuses what was stored but never asked for, so that no weight is silently left out.
"""

import fnmatch
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch

from deeproot.engine.fp8_product import TILE, kept_scales
from deeproot.engine.grouped_rows import GroupedRows, joined

Shape = tuple[int, ...]
Progress = Callable[[int, int], None]
"""Called with bytes of weights done and bytes in all, in the dtype that they are kept in."""

_ALWAYS_IGNORED = ("*.rotary_emb.inv_freq",)
"""Stored by some, computed by all."""


class WeightError(ValueError):
    """Weights are missing, surplus, damaged or of a wrong shape. The message names the tensor or file."""


class WeightSource(Protocol):
    """Hands out tensors, each in the dtype and on the device in which the model is to run."""

    dtype: torch.dtype

    def take(self, name: str, shape: Shape) -> torch.Tensor:
        """The tensor of that name, which the caller may keep. Raises WeightError if it is missing or misshapen."""
        ...

    def take_scaled(self, shapes: Mapping[str, Shape]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Weights of one linear layer in e4m3, joined, and their scales as `fp8_product.kept_scales` gives them.

        None if they are not to be multiplied so: `take` them. Raises WeightError.
        """
        ...

    def take_grouped(self, shapes: Mapping[str, Shape]) -> GroupedRows | None:
        """Weights that share their input, joined, if they are to stay quantised; None if not: `take` them.

        Raises WeightError.
        """
        ...

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Call after construction. Raises WeightError if tensors were stored that no `take` asked for.

        ignored: names (with * and ?) of tensors that may be left.
        """
        ...


class TensorStore(Protocol):
    """Tensors in files, under their Hugging Face names."""

    shapes: Mapping[str, Shape]

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU, in the file's floating dtype; may alias mapped memory."""
        ...


class ScaledStore(TensorStore, Protocol):
    """A store of which some tensors are e4m3 with a scale a tile; `read` dequantises them."""

    def read_scaled(self, name: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The tensor as it is stored and its scales, on the CPU; None if it is not e4m3."""
        ...


class GroupedStore(TensorStore, Protocol):
    """A store of which some tensors are quantised in groups; `read` dequantises them."""

    def read_grouped(self, name: str) -> GroupedRows | None:
        """The tensor as it is to stay; None if it is not to be quantised."""
        ...


class StoredWeights:
    """Weights from files."""

    def __init__(
        self,
        store: TensorStore,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None = None,
        fp8: ScaledStore | None = None,
        grouped: GroupedStore | None = None,
    ) -> None:
        """fp8: `store` again, if its e4m3 weights are to be multiplied as they are; grouped: alike."""
        self._store = store
        self._fp8 = fp8
        self._grouped = grouped
        self.dtype = dtype
        self._device = device
        self._left = dict.fromkeys(store.shapes)
        self._meter = Meter(sum(map(math.prod, store.shapes.values())) * dtype.itemsize, progress)

    def take(self, name: str, shape: Shape) -> torch.Tensor:
        self._check(name, shape)
        tensor = self._store.read(name).to(device=self._device, dtype=self.dtype)
        self._took(name, tensor.numel())
        return tensor

    def take_scaled(self, shapes: Mapping[str, Shape]) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self._fp8 is None or any(n % TILE for shape in shapes.values() for n in shape):
            return None
        found = [part for part in map(self._fp8.read_scaled, shapes) if part is not None]
        if len(found) < len(shapes):
            return None
        for name, shape in shapes.items():
            self._check(name, shape)
            self._took(name, math.prod(shape))
        weight = torch.cat([part[0] for part in found]).to(self._device)
        return weight, kept_scales(torch.cat([part[1] for part in found]).to(self._device))

    def take_grouped(self, shapes: Mapping[str, Shape]) -> GroupedRows | None:
        if self._grouped is None:
            return None
        for name, shape in shapes.items():
            self._check(name, shape)
        found = [part for part in map(self._grouped.read_grouped, shapes) if part is not None]
        rows = joined(found) if len(found) == len(shapes) else None
        if rows is not None:
            for name, shape in shapes.items():
                self._took(name, math.prod(shape))
        return rows

    def _took(self, name: str, size: int) -> None:
        self._left.pop(name, None)
        self._meter.add(size * self.dtype.itemsize)

    def _check(self, name: str, shape: Shape) -> None:
        stored = self._store.shapes.get(name)
        if stored is None:
            raise WeightError(f"tensor {name!r} of shape {list(shape)} is missing from the weights")
        if tuple(stored) != shape:
            raise WeightError(
                f"tensor {name!r} has shape {list(stored)}, the configuration wants {list(shape)}"
            )

    def finish(self, ignored: Iterable[str] = ()) -> None:
        patterns = (*_ALWAYS_IGNORED, *ignored)
        surplus = [name for name in self._left if not any(fnmatch.fnmatchcase(name, p) for p in patterns)]
        if surplus:
            more = f" and {len(surplus) - 5} more" if len(surplus) > 5 else ""
            raise WeightError(
                f"the weights hold tensors that the model does not use: {', '.join(surplus[:5])}{more}; "
                "is this another architecture than the configuration says?"
            )
        self._meter.complete()


class DummyWeights:
    """Seeded random weights: the same for the same seed, name, shape, dtype and kind of device.

    Norm weights are 1, biases 0, the others normal with a deviation of `in_features ** -0.5`, so that activations
    and logits keep a scale of about 1.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
        total_bytes: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.dtype = dtype
        self._device = device
        self._seed = seed
        self._meter = Meter(total_bytes, progress)

    @property
    def taken_bytes(self) -> int:
        """Bytes of all tensors so far."""
        return self._meter.done

    def take(self, name: str, shape: Shape) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=self.dtype, device=self._device)
        if name.endswith("norm.weight"):
            tensor.fill_(1)
        elif name.endswith(".bias"):
            tensor.zero_()
        elif self._device.type != "meta":
            generator = torch.Generator(self._device)
            # 32 bits, since the CPU's generator drops the others.
            generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
            tensor.normal_(0, shape[-1] ** -0.5, generator=generator)
        self._meter.add(tensor.nbytes)
        return tensor

    def take_scaled(self, shapes: Mapping[str, Shape]) -> None:
        """Made-up weights are not e4m3."""

    def take_grouped(self, shapes: Mapping[str, Shape]) -> None:
        """Nor are they quantised."""

    def finish(self, ignored: Iterable[str] = ()) -> None:
        self._meter.complete()


class Meter:
    """Counts bytes and tells a progress callback, if there is one."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done = 0
        self._total = total
        self._progress = progress

    def add(self, num_bytes: int) -> None:
        self.done += num_bytes
        if self._progress is not None:
            self._progress(min(self.done, self._total), self._total)

    def complete(self) -> None:
        """Tensors that were rightly ignored count as done."""
        if self._progress is not None:
            self._progress(self._total, self._total)
