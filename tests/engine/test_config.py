"""Configurations: what is read, what is refused, and that every refusal names its key."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.hf import tiny_llama
from tests.engine.test_gguf import write
from transformers import LlamaConfig

from deeproot.engine.config import SUPPORTED_ARCHITECTURES, ConfigError, ModelConfig, RopeConfig
from deeproot.engine.config_gguf import config_from_gguf
from deeproot.engine.config_hf import config_from_dict
from deeproot.engine.gguf import GGUFFile
from deeproot.engine.loading import read_config
from deeproot.engine.models import MODEL_CLASSES

LLAMA2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-05,
    "vocab_size": 32000,
}
LLAMA31: dict[str, Any] = {
    **LLAMA2,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}


def test_defaults_are_those_of_llama_2() -> None:
    config = config_from_dict(LLAMA2)
    assert (config.num_kv_heads, config.head_dim) == (32, 128)
    assert config.rope == RopeConfig(128, 10000.0)
    assert (config.tie_word_embeddings, config.qkv_bias, config.mlp_bias) == (False, False, False)


def test_unknown_keys_and_nulls_are_dropped() -> None:
    data = {**LLAMA2, "pretraining_tp": 1, "new_key": {}, "rope_scaling": None, "head_dim": None}
    assert config_from_dict(data) == config_from_dict(LLAMA2)


def test_both_spellings_of_rope_scaling() -> None:
    old = config_from_dict(LLAMA31)
    assert old.rope == RopeConfig(128, 500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    new = {k: v for k, v in LLAMA31.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {**LLAMA31["rope_scaling"], "rope_theta": 500000.0}
    assert config_from_dict(new) == old
    oldest = {**LLAMA2, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert config_from_dict(oldest).rope == RopeConfig(128, 10000.0, "linear", 4.0)


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    tiny_llama(tmp_path, num_key_value_heads=3, head_dim=24, tie_word_embeddings=True)
    theirs = LlamaConfig.from_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert config == read_config(tmp_path / "config.json")
    assert (config.num_kv_heads, config.head_dim, config.num_layers) == (3, 24, theirs.num_hidden_layers)
    assert (config.rms_norm_eps, config.tie_word_embeddings) == (theirs.rms_norm_eps, True)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no architecture": ({"architectures": None}, "'architectures'"),
    "two architectures": ({"architectures": ["A", "B"]}, "'architectures'"),
    "unknown architecture": (
        {"architectures": ["MambaForCausalLM"]},
        "'MambaForCausalLM' is not supported.*LlamaFor",
    ),
    "missing": ({"vocab_size": None}, "'vocab_size' is missing"),
    "string": ({"hidden_size": "4096"}, "'hidden_size' must be a whole number"),
    "float": ({"num_hidden_layers": 2.0}, "'num_hidden_layers' must be a whole number"),
    "boolean for a number": ({"num_hidden_layers": True}, "'num_hidden_layers'"),
    "zero": ({"intermediate_size": 0}, "'intermediate_size'.*at least 1"),
    "negative": ({"num_attention_heads": -1}, "'num_attention_heads'"),
    "no head_dim": ({"hidden_size": 8}, "'head_dim'"),
    "eps": ({"rms_norm_eps": 0}, "'rms_norm_eps' must be a number over 0"),
    "NaN": ({"rope_theta": float("nan")}, "'rope_theta'"),
    "number for a boolean": ({"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false"),
    "heads": ({"num_key_value_heads": 5}, r"heads \(32\) is not a multiple.*\(5\)"),
    "odd head_dim": ({"head_dim": 7}, "rotary dim 7 must be even"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config.*'gptq'.*GGUF"),
    "rope kind": (
        {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}},
        "rope type 'ntk' is not supported; supported: default, linear, dynamic, llama3, yarn, longrope",
    ),
    "rope not an object": ({"rope_scaling": 3}, "'rope_scaling' must be an object"),
    "rope without factor": ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: 'factor' is missing"),
    "rope type": ({"rope_parameters": {"rope_type": 3}}, "rope_parameters: 'rope_type' must be a string"),
    "llama3 order": (
        {"rope_scaling": {**LLAMA31["rope_scaling"], "low_freq_factor": 4.0}},
        "'low_freq_factor' must be over 0 and under",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_name_of_the_key(name: str) -> None:
    changes, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        config_from_dict({**LLAMA2, **changes})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = [*LLAMA31, "head_dim", "tie_word_embeddings", "hidden_act", "quantization_config", "rope_parameters"]


@settings(deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3), nested=st.booleans())
def test_any_json_gives_a_config_or_a_config_error(changes: dict[str, Any], nested: bool) -> None:
    data = {**LLAMA31, **changes}
    if nested:
        inner = dict(zip(LLAMA31["rope_scaling"], changes.values(), strict=False))
        data["rope_scaling"] = {**LLAMA31["rope_scaling"], **inner}
    try:
        config = config_from_dict(data)
    except ConfigError:
        return
    assert config.num_qo_heads % config.num_kv_heads == 0


def test_broken_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for content, reason in ((b"{", "not JSON"), (b"\xff", "not JSON"), (b"[]", "must hold an object")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=reason):
            read_config(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        read_config(tmp_path)


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
        ({"tokenizer.ggml.tokens": None}, "'llama.vocab_size' is missing"),
    ],
)
def test_gguf_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        gguf_config(tmp_path, changes)


def test_every_supported_architecture_has_a_class() -> None:
    assert set(MODEL_CLASSES) == set(SUPPORTED_ARCHITECTURES)


def test_kv_layout() -> None:
    layout = config_from_dict(LLAMA31).kv_layout(64, torch.bfloat16)
    assert layout.page_bytes == 2 * 32 * 8 * 64 * 128 * 2


def test_json_example_is_read_from_text() -> None:
    assert config_from_dict(json.loads(json.dumps(LLAMA31))).max_position_embeddings == 131072
