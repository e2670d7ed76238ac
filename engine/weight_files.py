"""Tensor stores over files: GGUF, and Hugging Face folders of safetensors. Pickled weights are never read."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from deeproot.engine.config import ModelConfig
from deeproot.engine.gguf import GGUFFile
from deeproot.engine.weights import Shape, WeightError

_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_GGUF_FOR_CONFIG = {"rope_freqs.weight"}
"""Read by ModelConfig, not by a model."""

_FLOATS = {"F64", "F32", "F16", "BF16"}


class GGUFStore:
    """Dequantised tensors of a GGUF file under Hugging Face names and in Hugging Face's order of rows."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        self._names = {_hf_name(name): name for name in file.tensors if name not in _GGUF_FOR_CONFIG}
        self.shapes: Mapping[str, Shape] = {hf: file.tensors[name].shape for hf, name in self._names.items()}
        # llama.cpp rotates neighbouring channels, Hugging Face the two halves of a head; the converter to GGUF
        # reorders the rows of Q and K accordingly, for the llama architecture only.
        permuted = file.metadata.get("general.architecture") == "llama"
        self._heads = {"q_proj": config.num_qo_heads, "k_proj": config.num_kv_heads} if permuted else {}

    def read(self, name: str) -> torch.Tensor:
        tensor = torch.from_numpy(self._file.read(self._names[name]))
        projection = name.split(".")[-2]
        if projection in self._heads:
            return halves_from_neighbours(tensor, self._heads[projection])
        return tensor


def halves_from_neighbours(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Move channel 2i of each head to i, and 2i + 1 to head_dim / 2 + i. rows: `[num_heads * head_dim, …]`."""
    heads = rows.view(num_heads, -1, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)


def _hf_name(name: str) -> str:
    """Names that are not known stay as they are, and are found to be surplus."""
    match = _GGUF_LAYER_NAME.fullmatch(name)
    if match and match[2] in _GGUF_LAYER:
        return f"model.layers.{int(match[1])}.{_GGUF_LAYER[match[2]]}.{match[3]}"
    return _GGUF_TOP.get(name, name)


class SafetensorsStore:
    """Memory-mapped tensors of a Hugging Face folder: one file, or shards with an index."""

    def __init__(self, folder: Path) -> None:
        """Raises WeightError if the folder holds no usable weights."""
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
        if kind not in _FLOATS:
            raise WeightError(
                f"{file}: tensor {name!r} has dtype {kind}; supported: {', '.join(sorted(_FLOATS))}"
            )
        return tuple(tensor.get_shape())

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handles[self._files[name]].get_tensor(name)
        return tensor


def _open(file: Path) -> Any:
    """The handle of a file. Any, since the package does not type its methods."""
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError:
        raise WeightError(f"{file} is missing; is the download complete?") from None
    except (SafetensorError, OSError) as error:
        raise WeightError(
            f"{file}: not a sound safetensors file ({error}); is the download complete?"
        ) from None


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
        content = json.loads(index.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
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
