"""Families in GGUF files: named by the `gguf` package's own table, read by transformers' own loader and by ours."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.gguf_files import write_gguf
from tests.engine.hf import hf_greedy, hf_logits, make_runner, relative_error, tiny_model
from tests.engine.sequences import random_ids, run_greedy, run_in_steps, scattered_pages
from transformers import AutoModelForCausalLM

from deeproot.engine.config_gguf import config_from_gguf
from deeproot.engine.gguf import GGUFFile
from deeproot.engine.weights import WeightError

WINDOW = 21
GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": True,
    "sliding_window": WINDOW,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
    # Transformers ignores the file's head_dim for Qwen 3: it must be the default.
    "qwen3": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
    "gemma3": {
        **GEMMA,
        "num_hidden_layers": 7,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "phi3": {"num_attention_heads": 4, "partial_rotary_factor": 0.5, "sliding_window": WINDOW},
}


@pytest.mark.parametrize("family", MODELS)
def test_equals_transformers(tmp_path: Path, family: str) -> None:
    model = tiny_model(None, family, **MODELS[family])
    path = write_gguf(tmp_path / "m.gguf", family, model)
    ids, *prompts = random_ids(120, 3, 70)
    expected = hf_logits(model, ids)
    for page_size, steps in ((16, [120]), (32, [50, 69, 1])):
        [pages] = scattered_pages([ids], page_size)
        assert relative_error(run_in_steps(make_runner(path, page_size), ids, pages, steps), expected) < 1e-4
    assert run_greedy(make_runner(path), prompts, 16) == [hf_greedy(model, prompt, 16) for prompt in prompts]


@pytest.mark.parametrize("family", MODELS)
def test_transformers_finds_the_same_weights_in_the_file(tmp_path: Path, family: str) -> None:
    """A guard for the test above: the file is what transformers, too, takes such a file to be."""
    model = tiny_model(None, family, **MODELS[family])
    write_gguf(tmp_path / "m.gguf", family, model)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    found = theirs.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.allclose(found[name], tensor, atol=1e-6), name


@pytest.mark.parametrize(("max_model_len", "length"), [(None, 300), (200, 168)])
def test_longrope_equals_transformers(tmp_path: Path, max_model_len: int | None, length: int) -> None:
    short, long = np.linspace(1, 3, 6, dtype=np.float32), np.linspace(1, 11, 6, dtype=np.float32)
    model = tiny_model(
        None,
        "phi3",
        num_attention_heads=4,
        original_max_position_embeddings=256,
        rope_parameters={
            "rope_type": "longrope",
            "short_factor": short.tolist(),
            "long_factor": long.tolist(),
            "rope_theta": 500.0,
        },
    )
    path = write_gguf(
        tmp_path / "m.gguf", "phi3", model, rope_factors_short__weight=short, rope_factors_long__weight=long
    )
    [ids] = random_ids(length)
    [pages] = scattered_pages([ids], 16)
    logits = run_in_steps(make_runner(path, max_model_len=max_model_len), ids, pages, [length])
    assert relative_error(logits, hf_logits(model, ids)) < 1e-4


@pytest.mark.parametrize(
    ("family", "layers", "divisor"), [("gemma2", 46, 8), ("gemma3", 62, 8), ("gemma2", 42, 16)]
)
def test_the_largest_gemmas_scale_by_hidden_size(
    tmp_path: Path, family: str, layers: int, divisor: int
) -> None:
    """llama.cpp knows them by their number of layers."""
    model = tiny_model(None, family, **{**MODELS[family], "num_hidden_layers": layers})
    with GGUFFile(write_gguf(tmp_path / "m.gguf", family, model)) as file:
        assert config_from_gguf(file).attention_scale == pytest.approx(divisor**-0.5)


def test_tensors_of_another_family_are_surplus(tmp_path: Path) -> None:
    model = tiny_model(None, "qwen2")
    path = write_gguf(tmp_path / "m.gguf", "qwen2", model, blk__0__attn_q_norm__weight=np.ones(8, np.float32))
    with pytest.raises(WeightError, match=re.escape("does not use: blk.0.attn_q_norm.weight")):
        make_runner(path)
