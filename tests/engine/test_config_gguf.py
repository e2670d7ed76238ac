"""Configurations from the metadata of GGUF files."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.engine.gguf_samples import write

from deeproot.engine.config import ConfigError, ModelConfig, RopeConfig
from deeproot.engine.config_gguf import config_from_gguf
from deeproot.engine.gguf import GGUFFile


def gguf_config(
    path: Path, changes: dict[str, Any], tensors: dict[str, np.ndarray] | None = None
) -> ModelConfig:
    values: dict[str, Any] = {
        "llama.block_count": 2,
        "llama.context_length": 4096,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        **changes,
    }

    def fill(writer: gguf.GGUFWriter) -> None:
        for key, value in values.items():
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif value is not None:
                writer.add_uint32(key, value)
        for name, tensor in (tensors or {}).items():
            writer.add_tensor(name, tensor)

    arch = str(changes.get("arch", "llama"))
    with GGUFFile(write(path / "c.gguf", fill, arch)) as file:
        return config_from_gguf(file)


def test_gguf_defaults(tmp_path: Path) -> None:
    config = gguf_config(tmp_path, {})
    assert (config.vocab_size, config.num_kv_heads, config.head_dim) == (3, 4, 16)
    assert config.rope == RopeConfig(16, 10000.0)
    assert config.tie_word_embeddings


def test_gguf_says_more(tmp_path: Path) -> None:
    head = {"output.weight": np.zeros((3, 64), np.float32), "blk.0.attn_q.bias": np.zeros(64, np.float32)}
    changes = {
        "llama.vocab_size": 5,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 32,
        "llama.rope.dimension_count": 32,
        "llama.rope.freq_base": 5e5,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.0,
    }
    config = gguf_config(tmp_path, changes, head)
    assert (config.vocab_size, config.num_kv_heads, config.head_dim) == (5, 2, 32)
    assert config.rope == RopeConfig(32, 5e5, "linear", 2.0)
    assert not config.tie_word_embeddings
    assert config.qkv_bias


def test_gguf_rope_divisors(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    config = gguf_config(tmp_path, {}, {"rope_freqs.weight": divisors})
    assert config.rope.freq_divisors == tuple(divisors.tolist())
    with pytest.raises(ConfigError, match="needs 8 divisors, got 4"):
        gguf_config(tmp_path, {}, {"rope_freqs.weight": divisors[:4]})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arch": "mamba"}, "general.architecture 'mamba' is not supported; supported: llama"),
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": "two"}, "'llama.block_count' must be a whole number"),
        ({"llama.attention.head_count": [4, 2]}, "'llama.attention.head_count' must be a whole number"),
        ({"llama.expert_count": 8}, "expert_count: mixtures"),
        ({"split.count": 3}, "split.count.*one of 3 parts.*merge"),
        ({"llama.rope.scaling.type": "yarn"}, "scaling.type 'yarn' is not supported"),
        ({"arch": "gemma3"}, "'gemma3.attention.head_count' is missing"),
        ({"tokenizer.ggml.tokens": None}, "'llama.vocab_size' is missing"),
    ],
)
def test_gguf_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        gguf_config(tmp_path, changes)
