"""Configurations: what is read, what is refused, and that every refusal names its key."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.hf import tiny_llama
from transformers import LlamaConfig

from deeproot.engine.config import SUPPORTED_ARCHITECTURES, ConfigError, RopeConfig
from deeproot.engine.config_hf import config_from_dict
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
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
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
        for method in ("awq", "gptq", "bitsandbytes", "compressed-tensors")
    },
    "fp8 without tiles": (
        {"quantization_config": {"quant_method": "fp8"}},
        "quant_method 'fp8' is supported only with 'weight_block_size'",
    ),
    "fp8 with tiles that are none": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]}},
        "'weight_block_size' must be two whole numbers of at least 1",
    ),
    "fp8 of another format": (
        {"quantization_config": {**FP8, "fmt": "e5m2"}},
        "fmt 'e5m2' is not supported for quant_method 'fp8'; supported: e4m3",
    ),
    "fp8 with stored scales of activations": (
        {"quantization_config": {**FP8, "activation_scheme": "static"}},
        "activation_scheme 'static' is not supported for quant_method 'fp8'; supported: dynamic",
    ),
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
    fp8_changes=st.none()
    | st.dictionaries(st.sampled_from([*FP8, "fmt", "activation_scheme"]), JSON, max_size=2),
)
def test_any_json_gives_a_config_or_a_config_error(
    architecture: str,
    changes: dict[str, Any],
    rope: dict[str, Any],
    rope_changes: list[Any],
    max_model_len: int | None,
    fp8_changes: dict[str, Any] | None,
) -> None:
    inner = dict(zip(reversed(rope), rope_changes, strict=False))
    data = {**LLAMA31, "architectures": [architecture], "rope_scaling": {**rope, **inner}, **changes}
    if fp8_changes is not None:
        data["quantization_config"] = {**FP8, **fp8_changes}
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


def test_every_supported_architecture_has_a_class() -> None:
    assert set(MODEL_CLASSES) == set(SUPPORTED_ARCHITECTURES)


def test_kv_layout() -> None:
    layout = config_from_dict(LLAMA31).kv_layout(64, torch.bfloat16)
    assert layout.page_bytes == 2 * 32 * 8 * 64 * 128 * 2


def test_json_example_is_read_from_text() -> None:
    assert config_from_dict(json.loads(json.dumps(LLAMA31))).max_position_embeddings == 131072
