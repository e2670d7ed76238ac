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
from deeproot.engine.rope import inverse_frequencies

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
    **{
        method: (
            {"quantization_config": {"quant_method": method}},
            f"quantization_config with quant_method '{method}' is not supported; use the unquantised.*GGUF",
        )
        for method in ("awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors")
    },
    "quantised somehow": ({"quantization_config": {}}, "quant_method 'None' is not supported"),
    "rope kind": (
        {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}},
        "rope type 'ntk' is not supported; supported: default, linear, dynamic, llama3, yarn, longrope",
    ),
    "rope not an object": ({"rope_scaling": 3}, "'rope_scaling' must be an object"),
    "rope without factor": ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: 'factor' is missing"),
    "rope type": ({"rope_parameters": {"rope_type": 3}}, "rope_parameters: 'rope_type' must be a string"),
    "rope of each layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "'rope_parameters' differs between layers",
    ),
    "rope factor": (
        {"rope_scaling": {"rope_type": "linear", "factor": 1e300}},
        "rope_scaling: 'factor' must be at most 1.04858e",
    ),
    "longrope without factors": ({"rope_scaling": {"rope_type": "longrope"}}, "'short_factor' is missing"),
    "longrope with too few factors": (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
        "'short_factor' must be a list of 64 numbers, got '1 numbers'",
    ),
    "longrope with a factor of 0": (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [0.0]}},
        "'short_factor' must be a list of numbers over 0",
    ),
    "yarn order": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 33}},
        "'beta_slow' must be over 0 and at most 'beta_fast'",
    ),
    "partial rotary factor": ({"partial_rotary_factor": 1.5}, "'partial_rotary_factor' must be at most 1"),
    "partial rotary factor of nothing": ({"partial_rotary_factor": 0.001}, "rotary dim 0 must be even"),
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


def family(name: str, **changes: Any) -> dict[str, Any]:
    return {**LLAMA2, "architectures": [f"{name}ForCausalLM"], **changes}


def test_mistral() -> None:
    assert config_from_dict(family("Mistral", sliding_window=100)).layer_windows == (100,) * 32
    assert config_from_dict(family("Mistral", sliding_window=None)).layer_windows == ()
    assert config_from_dict(family("Mistral")).layer_windows == (4096,) * 32
    assert config_from_dict(family("Mistral", sliding_window=100)).window(31) == 100
    assert config_from_dict(family("Mistral", sliding_window=None)).window(31) is None


def test_llama_has_no_windows() -> None:
    assert config_from_dict(family("Llama", sliding_window=100)).layer_windows == ()


def test_qwen2() -> None:
    config = config_from_dict(family("Qwen2", sliding_window=100, max_window_layers=30))
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, False, False)
    assert config.layer_windows == ()
    data = family("Qwen2", sliding_window=100, max_window_layers=30, use_sliding_window=True)
    assert config_from_dict(data).layer_windows == (None,) * 30 + (100, 100)
    assert config_from_dict({**data, "sliding_window": None}).layer_windows == ()


def test_qwen3() -> None:
    config = config_from_dict(family("Qwen3", num_attention_heads=64))
    assert (config.head_dim, config.qkv_bias, config.out_bias) == (128, False, False)
    assert config_from_dict(family("Qwen3", attention_bias=True)).out_bias


def test_gemma2() -> None:
    """With nothing but sizes, transformers' defaults."""
    config = config_from_dict(family("Gemma2"))
    assert (config.attention_soft_cap, config.logits_soft_cap) == (50.0, 30.0)
    assert (config.head_dim, config.attention_scale) == (256, 1 / 16)
    assert (config.tie_word_embeddings, config.activation) == (True, "gelu_tanh")
    assert config.layer_windows == (4096, None) * 16
    uncapped = config_from_dict(family("Gemma2", attn_logit_softcapping=None, final_logit_softcapping=None))
    assert (uncapped.attention_soft_cap, uncapped.logits_soft_cap) == (None, None)
    types = ["full_attention"] * 30 + ["sliding_attention"] * 2
    data = family("Gemma2", layer_types=types, sliding_window=7, query_pre_attn_scalar=144)
    assert config_from_dict(data).layer_windows == (None,) * 30 + (7, 7)
    assert config_from_dict(data).attention_scale == pytest.approx(1 / 12)


def test_gemma3_in_both_spellings() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    older = family(
        "Gemma3", rope_theta=1e6, rope_local_base_freq=5e3, rope_scaling=linear, sliding_window_pattern=4
    )
    config = config_from_dict(older)
    assert config.rope == RopeConfig(256, 1e6, "linear", 8.0)
    assert config.local_rope == RopeConfig(256, 5e3)
    assert config.layer_windows == (4096, 4096, 4096, None) * 8
    ropes = {
        "full_attention": {**linear, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    types = (["sliding_attention"] * 3 + ["full_attention"]) * 8
    assert config_from_dict(family("Gemma3", rope_parameters=ropes, layer_types=types)) == config
    plain = config_from_dict(family("Gemma3"))
    assert (plain.rope, plain.local_rope) == (RopeConfig(256, 1e6), RopeConfig(256, 1e4))
    assert plain.layer_windows[:6] == (4096,) * 5 + (None,)


def test_phi3() -> None:
    config = config_from_dict(family("Phi3", partial_rotary_factor=0.75, sliding_window=2047))
    assert (config.rope, config.layer_windows) == (RopeConfig(96, 10000.0), (2047,) * 32)
    assert config_from_dict(family("Phi3")).layer_windows == ()
    longrope = {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    data = family("Phi3", rope_scaling=longrope, original_max_position_embeddings=1024)
    assert config_from_dict(data).rope.freq_divisors == (2.0,) * 64
    assert config_from_dict(data, max_model_len=1024).rope.freq_divisors == (1.0,) * 64
    assert config_from_dict(data, max_model_len=1024).max_position_embeddings == 4096


FAMILY_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "window": (family("Mistral", sliding_window=0), "'sliding_window' must be a whole number of at least 1"),
    "layer types": (
        family("Gemma2", layer_types=["chunked_attention"] * 32),
        "'layer_types' must be a list of 'sliding_attention' and 'full_attention'",
    ),
    "number of layer types": (
        family("Gemma2", layer_types=["full_attention"] * 31),
        "31 layers have a kind of attention, the model has 32 layers",
    ),
    "activation": (
        family("Gemma2", hidden_activation="gelu"),
        "hidden_activation 'gelu' is not supported; supported: silu, gelu_pytorch_tanh",
    ),
    "both directions": (
        family("Gemma3", use_bidirectional_attention=True),
        "'use_bidirectional_attention' is not supported",
    ),
    "a cap that transformers ignores": (
        family("Gemma3", attn_logit_softcapping=50.0),
        "'attn_logit_softcapping' is not supported for Gemma 3",
    ),
}


@pytest.mark.parametrize("name", FAMILY_REFUSED)
def test_what_families_refuse(name: str) -> None:
    data, reason = FAMILY_REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        config_from_dict(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    *LLAMA31,
    *("head_dim", "tie_word_embeddings", "hidden_act", "hidden_activation", "quantization_config"),
    *("rope_parameters", "partial_rotary_factor", "original_max_position_embeddings", "attention_bias"),
    *("sliding_window", "use_sliding_window", "layer_types", "max_window_layers", "sliding_window_pattern"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "rope_local_base_freq"),
]
ROPES: list[dict[str, Any]] = [
    LLAMA31["rope_scaling"],
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 32.0},
    {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 64, "long_factor": [2.0] * 64},
]


@settings(max_examples=300, deadline=None)
@given(
    architecture=st.sampled_from(SUPPORTED_ARCHITECTURES),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
    rope=st.sampled_from(ROPES),
    rope_changes=st.lists(JSON, max_size=3),
    max_model_len=st.none() | st.integers(1, 10**9),
)
def test_any_json_gives_a_config_or_a_config_error(
    architecture: str,
    changes: dict[str, Any],
    rope: dict[str, Any],
    rope_changes: list[Any],
    max_model_len: int | None,
) -> None:
    inner = dict(zip(reversed(rope), rope_changes, strict=False))
    data = {**LLAMA31, "architectures": [architecture], "rope_scaling": {**rope, **inner}, **changes}
    try:
        config = config_from_dict(data, max_model_len)
    except ConfigError:
        return
    assert config.num_qo_heads % config.num_kv_heads == 0
    assert inverse_frequencies(config.rope).shape == (config.rope.dim // 2,)


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
