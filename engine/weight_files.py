"""Hugging Face folders of safetensors as tensor stores. Pickled weights are never read."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from deeproot.engine.text_files import read_text
from deeproot.engine.weights import Shape, WeightError

_FLOATS = {"F64", "F32", "F16", "BF16"}
_MAX_HEADER_BYTES = 64 * 2**20
"""A tensor takes some hundred bytes of it."""
_QUANTISED = dict.fromkeys((".qweight", ".qzeros", ".g_idx"), ", as weights quantised by GPTQ or AWQ have")
"""By the end of a tensor's name, for folders whose `config.json` does not say it."""


class SafetensorsStore:
    """Memory-mapped tensors of a Hugging Face folder: one file, or shards with an index."""

    def __init__(self, folder: Path, *, fp8: bool = False) -> None:
        """fp8: tensors may be e4m3. Raises WeightError if the folder holds no usable weights."""
        self._kinds = {*_FLOATS, "F8_E4M3"} if fp8 else _FLOATS
        self._files = _tensor_files(folder)
        self._handles = {file: _open(file) for file in dict.fromkeys(self._files.values())}
        self.shapes: Mapping[str, Shape] = {
            name: self._shape(name, file) for name, file in self._files.items()
        }

    def _shape(self, name: str, file: Path) -> Shape:
        try:
            tensor = self._handles[file].get_slice(name)
        except SafetensorError:
            raise WeightError(f"{file}: tensor {name!r} is missing, which the index says is there") from None
        kind = str(tensor.get_dtype())
        if kind not in self._kinds:
            hint = next((hint for end, hint in _QUANTISED.items() if name.endswith(end)), "")
            raise WeightError(
                f"{file}: tensor {name!r} has dtype {kind}{hint}; supported: {', '.join(sorted(self._kinds))}"
            )
        return tuple(tensor.get_shape())

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handles[self._files[name]].get_tensor(name)
        return tensor


def _open(file: Path) -> Any:
    """The handle of a file. Any, since the package does not type its methods.

    The package checks that every tensor lies in the file, is as long as its shape says, and that they neither
    overlap nor leave gaps.
    """
    _check_header_size(file)
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError:
        raise WeightError(f"{file} is missing; is the download complete?") from None
    except (SafetensorError, OSError) as error:
        raise WeightError(
            f"{file}: not a sound safetensors file ({error}); is the download complete?"
        ) from None


def _check_header_size(file: Path) -> None:
    """Raise WeightError for a header that is longer than the file or than any model's: it is read whole."""
    if not file.exists():
        return  # whoever opens it says so
    if not file.is_file():
        raise WeightError(f"{file} is not a regular file")
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
    if length > min(_MAX_HEADER_BYTES, file.stat().st_size):
        raise WeightError(
            f"{file}: not a sound safetensors file (its header is to have {length} bytes, the file has "
            f"{file.stat().st_size}, and at most {_MAX_HEADER_BYTES} are read); is the download complete?"
        )


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Each tensor's file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _index_files(index)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return dict.fromkeys(_open(files[0]).keys(), files[0])
    if files:
        raise WeightError(f"{folder} holds {len(files)} safetensors files but no {index.name}")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise WeightError(
            f"{folder} holds only pickled weights, which can run code when they are read; get the model's "
            "safetensors, or convert it: load it with transformers and save it by save_pretrained"
        )
    raise WeightError(f"{folder} holds no safetensors files")


def _index_files(index: Path) -> dict[str, Path]:
    try:
        content = json.loads(read_text(index))
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{index}: not JSON ({error})") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightError(f"{index}: 'weight_map' must be an object of tensor names and file names")
    for name, file in weight_map.items():
        if (
            not isinstance(file, str)
            or not re.fullmatch(r"[\w.-]+\.safetensors", file)
            or file.startswith(".")
        ):
            raise WeightError(
                f"{index}: tensor {name!r} must lie in a .safetensors file of the same folder, got {file!r}"
            )
    return {name: index.parent / file for name, file in weight_map.items()}
