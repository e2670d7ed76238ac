"""GGUF files of transformers' models, as llama.cpp's converter writes them."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.engine.gguf_samples import write
from transformers import PreTrainedModel


def neighbours_from_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of Q and K, one row at a time."""
    dim = len(rows) // num_heads
    out = np.empty_like(rows)
    for head in range(num_heads):
        for i in range(dim // 2):
            out[head * dim + 2 * i] = rows[head * dim + i]
            out[head * dim + 2 * i + 1] = rows[head * dim + dim // 2 + i]
    return out


def write_gguf(
    path: Path,
    family: str,
    model: PreTrainedModel,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **tensors: np.ndarray,
) -> Path:
    """As llama.cpp's converter writes it. kind: of all weights but norms. tensors: more of them, by name; `__` stands
    for a dot."""
    config = model.config
    arch = next(code for code, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)

    def fill(writer: gguf.GGUFWriter) -> None:
        add_metadata(writer, family, config)
        for name, rows in tensors.items():
            writer.add_tensor(name.replace("__", "."), rows)
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            rows = tensor.numpy()
            if family == "llama" and "q_proj" in name:
                rows = neighbours_from_halves(rows, config.num_attention_heads)
            elif family == "llama" and "k_proj" in name:
                rows = neighbours_from_halves(rows, config.num_key_value_heads)
            elif family.startswith("gemma") and name.endswith("norm.weight"):
                rows = rows + 1
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if kind == gguf.GGMLQuantizationType.F32 or rows.ndim != 2:
                writer.add_tensor(stored, rows)
            else:
                writer.add_tensor(stored, gguf.quants.quantize(rows, kind), raw_dtype=kind)

    return write(path, fill, family)


def add_metadata(writer: gguf.GGUFWriter, family: str, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_pad_token_id(0)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family in ("qwen3", "gemma2", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if family in ("gemma2", "gemma3", "phi3") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if family == "gemma3":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
    if family == "phi3":
        head_dim = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        original = config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        stretch = config.max_position_embeddings / original
        if rope["rope_type"] == "longrope":
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
