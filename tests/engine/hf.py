"""Tiny random models made and computed by transformers: the independent side of comparisons."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from deeproot.engine.attention_torch import TorchAttention
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import load_model
from deeproot.engine.runner import Runner

VOCAB = 96


def tiny_llama(folder: Path, seed: int = 0, max_shard_size: str = "1GB", **changes: Any) -> LlamaForCausalLM:
    """A random Llama in float32, saved to `folder`."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def hf_logits(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """Logits of every position, `[len(ids), vocab_size]`, the sequence computed alone and whole."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def make_runner(path: Path, page_size: int = 16, num_pages: int = 64) -> Runner:
    """Our side of the same model, in float32, with a pool full of NaN outside the pages that are in use."""
    loaded = load_model(path, dtype="float32")
    pool = KVPool(loaded.config.kv_layout(page_size, loaded.dtype), num_pages)
    for layer in range(loaded.config.num_layers):
        for tensor in pool.kv(layer):
            tensor.fill_(torch.nan)
    return Runner(loaded.model, pool, TorchAttention(pool))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of `expected`."""
    return float((actual - expected).norm() / expected.norm())
