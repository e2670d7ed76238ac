"""Tiny random models made and computed by transformers: the independent side of comparisons."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaForCausalLM, PreTrainedModel

from deeproot.engine.attention_choice import AttentionName
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import LoadFormat, faster_model, load_model, make_attention
from deeproot.engine.quantization import Quantization
from deeproot.engine.runner import Runner

VOCAB = 96
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
}
"""Of transformers: configuration and model of each family."""


def tiny_model(
    folder: Path | None, family: str, seed: int = 0, max_shard_size: str = "1GB", **changes: Any
) -> PreTrainedModel:
    """A random model in float32, saved to `folder` if there is one. The same for the same seed and shapes."""
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
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config_name, model_name = CLASSES[family]
    config = getattr(transformers, config_name)(**{**settings, **changes})
    # The other implementations leave out soft caps.
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(transformers, model_name)(config).eval()
    # Gemma multiplies by 1 + weight.
    centre = 0.0 if family.startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(centre - 0.5, centre + 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
    if folder is not None:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def tiny_llama(folder: Path, seed: int = 0, max_shard_size: str = "1GB", **changes: Any) -> LlamaForCausalLM:
    """A random Llama in float32, saved to `folder`."""
    model = tiny_model(folder, "llama", seed, max_shard_size, **changes)
    assert isinstance(model, LlamaForCausalLM)
    return model


def hf_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits of every position, `[len(ids), vocab_size]`, the sequence computed alone and whole."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def hf_greedy(model: PreTrainedModel, ids: list[int], num_tokens: int) -> list[int]:
    """What transformers generates after `ids`."""
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), max_new_tokens=num_tokens, do_sample=False, use_cache=True)
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


def make_runner(
    path: Path,
    page_size: int = 16,
    num_pages: int = 64,
    max_model_len: int | None = None,
    dtype: str = "float32",
    load_format: LoadFormat = "auto",
    attention: AttentionName = "torch",
    quantization: Quantization = "none",
) -> Runner:
    """Our side of the same model, with a pool full of NaN outside the pages that are in use.

    With the cpu backend and bfloat16 the model is the one that runs in C++.
    """
    loaded = load_model(path, load_format, dtype, max_model_len=max_model_len, quantization=quantization)
    pool = KVPool(loaded.config.kv_layout(page_size, loaded.dtype), num_pages)
    for layer in range(loaded.config.num_layers):
        for tensor in pool.kv(layer):
            tensor.fill_(torch.nan)
    backend = make_attention(loaded.config, pool, attention)
    return Runner(faster_model(loaded, backend), pool, backend)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of `expected`."""
    return float((actual - expected).norm() / expected.norm())
