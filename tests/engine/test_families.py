"""Every family of models against transformers: logits, and greedy tokens, in any steps and pages."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import hf_greedy, hf_logits, make_runner, relative_error, tiny_model
from tests.engine.sequences import random_ids, run_greedy, run_in_steps, scattered_pages

NUM_TOKENS = 32
LENGTH = 150
SHORT, LONG = 21, 400
"""Windows: shorter than the prompts, and longer than prompts and answers together."""
LOCAL_AND_GLOBAL = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 128}
GEMMA = {"head_dim": 16, "tie_word_embeddings": True, "query_pre_attn_scalar": 5}
PLAIN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 16, "use_sliding_window": False},
    "gemma2": {
        **GEMMA,
        "sliding_window": LONG,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "gemma3": {**GEMMA, "sliding_window": LONG, "num_hidden_layers": 4, "sliding_window_pattern": 3},
    "phi3": {"num_attention_heads": 4},
    "llama": {},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "mistral: short window": {"sliding_window": SHORT},
    "mistral: wide heads": {"head_dim": 24, "num_key_value_heads": 6},
    "qwen2: window in two layers": {
        "use_sliding_window": True,
        "sliding_window": SHORT,
        "max_window_layers": 1,
    },
    "qwen2: tied, yarn": {"tie_word_embeddings": True, "rope_parameters": YARN},
    "qwen3: biases": {"attention_bias": True},
    "qwen3: window in some layers": {
        "use_sliding_window": True,
        "sliding_window": SHORT,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "gemma2: short window": {"sliding_window": SHORT},
    "gemma2: cap of scores": {"attn_logit_softcapping": 1.5},
    "gemma2: cap of logits": {"final_logit_softcapping": 2.0},
    "gemma2: all": {
        "sliding_window": SHORT,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "gemma2: scale": {"query_pre_attn_scalar": 64},
    "gemma3: short window": {"sliding_window": SHORT},
    "gemma3: two bases": {"sliding_window": SHORT, "rope_parameters": LOCAL_AND_GLOBAL},
    "gemma3: cap of logits": {"final_logit_softcapping": 2.0},
    "phi3: short window": {"sliding_window": SHORT},
    "phi3: part of a head rotated": {"partial_rotary_factor": 0.5},
    "llama: yarn": {"rope_parameters": YARN},
    "llama: yarn, blended by a fraction of a channel": {
        "rope_parameters": {**YARN, "truncate": False, "beta_fast": 8.0, "attention_factor": 1.5}
    },
}
ALL = [*PLAIN, *VARIANTS]


def settings_of(name: str) -> tuple[str, dict[str, Any]]:
    """Family, and what differs from the defaults of `tiny_model`."""
    family = name.split(":")[0]
    return family, {**PLAIN[family], **VARIANTS.get(name, {})}


@pytest.mark.parametrize("name", ALL)
def test_logits_and_greedy_tokens_equal_transformers(tmp_path: Path, name: str) -> None:
    family, changes = settings_of(name)
    model = tiny_model(tmp_path, family, **changes)
    [ids] = random_ids(LENGTH)
    expected = hf_logits(model, ids)
    for page_size, steps in (
        (16, [150]),
        (64, [64, 64, 22]),
        (16, [1, 15, 16, 17, 101]),
        (32, [146, *[1] * 4]),
    ):
        runner = make_runner(tmp_path, page_size)
        [pages] = scattered_pages([ids], page_size)
        assert relative_error(run_in_steps(runner, ids, pages, steps), expected) < 1e-4
    prompts = random_ids(3, 40, 110, seed=1)
    assert run_greedy(make_runner(tmp_path), prompts, NUM_TOKENS) == [
        hf_greedy(model, prompt, NUM_TOKENS) for prompt in prompts
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_variant_adds_matters(name: str) -> None:
    """A guard for the test above: transformers' logits are far from those of the plain model."""
    family, changes = settings_of(name)
    [ids] = random_ids(LENGTH)
    plain = hf_logits(tiny_model(None, family, **PLAIN[family]), ids)
    assert relative_error(hf_logits(tiny_model(None, family, **changes), ids), plain) > 0.02


@pytest.mark.parametrize("family", ["mistral", "phi3", "gemma2", "gemma3"])
def test_a_batch_with_windows_equals_alone(tmp_path: Path, family: str) -> None:
    """Prefills, chunks over cached tokens, and decodes of several lengths in one step."""
    tiny_model(tmp_path, family, **{**PLAIN[family], "sliding_window": SHORT})
    runner = make_runner(tmp_path)
    new_tokens = [40, 1, 1, 17, 1, 64, 1, 1]
    sequences = random_ids(40, 1, 200, 80, 17, 65, 33, 34)
    pages = scattered_pages(sequences, 16)
    chunks, expected = [], []
    for ids, own, n in zip(sequences, pages, new_tokens, strict=True):
        steps = [len(ids) - n, n] if len(ids) > n else [n]
        expected.append(run_in_steps(runner, ids, own, steps)[-n:])
        chunks.append(Chunk(ids, len(ids) - n, own, all_logits=True))
    logits = runner.logits(make_batch(chunks, 16))
    for part, alone in zip(logits.split(new_tokens), expected, strict=True):
        assert relative_error(part, alone) < 1e-5


@pytest.mark.parametrize("name", ["phi3: part of a head rotated", "gemma3: two bases"])
def test_shards_equal_transformers(tmp_path: Path, name: str) -> None:
    family, changes = settings_of(name)
    model = tiny_model(tmp_path, family, max_shard_size="50KB", **changes)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    [ids] = random_ids(LENGTH)
    [pages] = scattered_pages([ids], 16)
    logits = run_in_steps(make_runner(tmp_path), ids, pages, [LENGTH])
    assert relative_error(logits, hf_logits(model, ids)) < 1e-4


def test_a_window_as_long_as_the_sequence_hides_nothing(tmp_path: Path) -> None:
    """The edge: a window of n shows n tokens, the own one included."""
    [ids] = random_ids(60)
    logits = {}
    for window in (59, 60, 61):
        model = tiny_model(tmp_path / str(window), "mistral", sliding_window=window)
        runner = make_runner(tmp_path / str(window))
        logits[window] = run_in_steps(runner, ids, [5, 3, 0, 9], [60])
        assert relative_error(logits[window], hf_logits(model, ids)) < 1e-4
    assert torch.equal(logits[60], logits[61])
    assert torch.equal(logits[59][:59], logits[60][:59])
    assert relative_error(logits[59][59], logits[60][59]) > 1e-3


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
    "long_factor": [1.0, 3.0, 5.0, 7.0, 9.0, 11.0],
    "rope_theta": 500.0,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0}


@pytest.mark.parametrize("max_model_len", [None, 200])
def test_longrope_equals_transformers_on_its_side_of_the_original_context(
    tmp_path: Path, max_model_len: int | None
) -> None:
    """Transformers takes long factors for calls over 256 tokens; we take them if sequences may become so long."""
    model = tiny_model(
        tmp_path,
        "phi3",
        num_attention_heads=4,
        original_max_position_embeddings=256,
        rope_parameters=LONGROPE,
    )
    prompts = random_ids(257, 300) if max_model_len is None else random_ids(3, 168)
    runner = make_runner(tmp_path, max_model_len=max_model_len)
    for ids in prompts:
        [pages] = scattered_pages([ids], 16)
        assert relative_error(run_in_steps(runner, ids, pages, [len(ids)]), hf_logits(model, ids)) < 1e-4
    assert run_greedy(runner, prompts, NUM_TOKENS) == [hf_greedy(model, ids, NUM_TOKENS) for ids in prompts]


def test_longrope_stays_while_a_sequence_grows(tmp_path: Path) -> None:
    """Where transformers' factors change with the length, and with them the meaning of K in its cache, ours do not."""
    tiny_model(
        tmp_path,
        "phi3",
        num_attention_heads=4,
        original_max_position_embeddings=256,
        rope_parameters=LONGROPE,
    )
    runner = make_runner(tmp_path)
    [ids] = random_ids(270)
    [pages] = scattered_pages([ids], 16)
    whole = run_in_steps(runner, ids, pages, [270])
    assert relative_error(run_in_steps(runner, ids, pages, [250, *[1] * 20]), whole) < 1e-5


def test_dynamic_equals_transformers_at_both_ends(tmp_path: Path) -> None:
    """At the original length nothing is scaled; at the longest, both scale alike."""
    model = tiny_model(tmp_path, "llama", max_position_embeddings=64, rope_parameters=DYNAMIC)
    for max_model_len, length in ((64, 64), (None, 128)):
        runner = make_runner(tmp_path, max_model_len=max_model_len)
        assert runner.model.config.max_position_embeddings == 128
        [ids] = random_ids(length)
        [pages] = scattered_pages([ids], 16)
        logits = run_in_steps(runner, ids, pages, [length - 10, *[1] * 10])
        assert relative_error(logits, hf_logits(model, ids)) < 1e-4


@pytest.mark.parametrize("family", PLAIN)
def test_half_precision_is_near_float32(tmp_path: Path, family: str) -> None:
    model = tiny_model(tmp_path, family, **PLAIN[family])
    [ids] = random_ids(60)
    expected = hf_logits(model, ids)
    for dtype, tolerance in (("float16", 0.01), ("bfloat16", 0.06)):
        if (family.startswith("gemma"), dtype) == (True, "float16"):
            with pytest.raises(ValueError, match=r"float16: activations of Gemma.*use bfloat16 or float32"):
                make_runner(tmp_path, dtype=dtype)
            continue
        runner = make_runner(tmp_path, dtype=dtype)
        logits = run_in_steps(runner, ids, [7, 3, 5, 1], [30, 1, 29])
        assert logits.dtype == torch.float32
        assert 0 < relative_error(logits, expected) < tolerance


@pytest.mark.parametrize("family", PLAIN)
def test_made_up_weights_give_sensible_logits(tmp_path: Path, family: str) -> None:
    tiny_model(tmp_path, family, **PLAIN[family])
    (tmp_path / "model.safetensors").unlink()
    runner = make_runner(tmp_path, load_format="dummy")
    [ids] = random_ids(30)
    assert 0.3 < run_in_steps(runner, ids, [4, 2], [20, 10]).std() < 5
