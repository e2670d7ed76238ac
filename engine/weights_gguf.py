"""GGUF tensors under Hugging Face names, in Hugging Face's order of rows and with its meaning of values."""

import re
from collections.abc import Mapping

import torch

from deeproot.engine.config import ModelConfig
from deeproot.engine.gguf import GGUFFile
from deeproot.engine.grouped_rows import GroupedRows, grouped_type
from deeproot.engine.weights import Shape

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
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
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_CHANGES: dict[str, dict[str, str]] = {
    "Qwen3ForCausalLM": _HEAD_NORMS,
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": _GEMMA | _HEAD_NORMS,
    "Phi3ForCausalLM": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}
"""By architecture: names that it has besides those of `_LAYER`, or that mean something else."""
_NORMS_FROM_ZERO = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
"""Their norms multiply by 1 + weight; files hold the sum."""
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_FOR_CONFIG = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
"""Read with the configuration, not by a model."""


class GGUFStore:
    """Tensors of a GGUF file, dequantised or as they are. See GroupedStore."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        names = _LAYER | _LAYER_CHANGES.get(config.architecture, {})
        self._names = {_hf_name(name, names): name for name in file.tensors if name not in _FOR_CONFIG}
        self.shapes: Mapping[str, Shape] = {hf: file.tensors[name].shape for hf, name in self._names.items()}
        # llama.cpp rotates neighbouring channels of its llama architecture, Hugging Face the two halves of a head;
        # the converter to GGUF reorders the rows of Q and K accordingly. The other architectures stay as they are.
        permuted = file.metadata.get("general.architecture") == "llama"
        self._heads = {"q_proj": config.num_qo_heads, "k_proj": config.num_kv_heads} if permuted else {}
        self._norms_from_zero = config.architecture in _NORMS_FROM_ZERO

    @property
    def has_grouped(self) -> bool:
        """Whether there is a tensor that `read_grouped` gives."""
        tensors = map(self._file.tensors.__getitem__, self._names.values())
        return any(
            len(tensor.shape) == 2 and grouped_type(tensor.type.name) is not None for tensor in tensors
        )

    def read(self, name: str) -> torch.Tensor:
        tensor = torch.from_numpy(self._file.read(self._names[name]))
        if self._norms_from_zero and name.endswith("norm.weight"):
            return tensor - 1
        return self._in_order(name, tensor)

    def read_grouped(self, name: str) -> GroupedRows | None:
        stored = self._names[name]
        tensor = self._file.tensors[stored]
        kind = grouped_type(tensor.type.name)
        if len(tensor.shape) != 2 or kind is None:
            return None
        data = torch.from_numpy(self._file.read_bytes(stored))
        return GroupedRows(kind, self._in_order(name, data))

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        projection = name.split(".")[-2]
        if projection in self._heads:
            return halves_from_neighbours(rows, self._heads[projection])
        return rows


def halves_from_neighbours(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Move channel 2i of each head to i, and 2i + 1 to head_dim / 2 + i. rows: `[num_heads * head_dim, …]`."""
    heads = rows.view(num_heads, -1, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)


def _hf_name(name: str, layer_names: Mapping[str, str]) -> str:
    """Names that are not known stay as they are, and are found to be surplus."""
    match = _LAYER_NAME.fullmatch(name)
    if match and match[2] in layer_names:
        return f"model.layers.{int(match[1])}.{layer_names[match[2]]}.{match[3]}"
    return _TOP.get(name, name)
