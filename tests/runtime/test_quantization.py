"""Quantised weights from the options to the answer, and what is said where they cannot be had."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.engine.hf import tiny_llama

from deeproot.kernels.cpu.build import Abilities, abilities_here
from deeproot.runtime.engine_setup import load_engine, load_scheduler
from deeproot.runtime.llm import LLM
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.sampling_options import SamplingOptions

compiled = pytest.mark.skipif(not abilities_here().bf16, reason="this CPU does not compute in bfloat16")
PROMPT = "The three primary colours are"


def options(model: Path, **changes: Any) -> EngineOptions:
    settings: dict[str, Any] = {"device": "cpu", "max_model_len": 96, "kv_cache_memory_bytes": 2**23}
    return EngineOptions(model=str(model), **{**settings, **changes})


@compiled
def test_cached_and_uncached_answers_are_the_same(smollm2_path: Path) -> None:
    with LLM(options(smollm2_path, quantization="gguf")) as llm:
        sampling = SamplingOptions(max_tokens=12, temperature=0)
        [first] = llm.generate(PROMPT, sampling)
        [again] = llm.generate(PROMPT, sampling)
        assert again.usage.cached > 0 == first.usage.cached
        assert again.token_ids == first.token_ids


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float32"}, "--quantization gguf: .*--dtype bfloat16"),
        ({"dtype": "bfloat16", "attention_backend": "torch"}, "--quantization gguf: attention is torch's"),
        ({"dtype": "bfloat16", "deterministic": True}, "--quantization gguf: .*not cpu: .*--deterministic"),
        ({"kv_cache_dtype": "fp8"}, "--quantization gguf: .*--kv-cache-dtype auto"),
        ({"load_format": "dummy"}, "--quantization gguf: made-up weights"),
    ],
    ids=["dtype", "backend", "deterministic", "fp8", "dummy"],
)
def test_what_cannot_be_had_is_refused_in_a_sentence(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("deeproot.engine.quantization.abilities_here", lambda: Abilities(bf16=True))
    with pytest.raises(SetupError, match=words):
        load_engine(options(smollm2_path, quantization="gguf", **changes))


def test_auto_goes_on_without(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="deeproot"):
        load_engine(options(tiny_model, quantization="auto", load_format="dummy"))
    assert "weights are not kept quantised: " in caplog.text


def test_a_model_that_is_no_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_llama(tmp_path)
    monkeypatch.setattr("deeproot.runtime.engine_setup.grouped_problem", lambda needs, attention: None)
    with pytest.raises(SetupError, match="--quantization gguf: the model is no GGUF file"):
        load_scheduler(options(tmp_path, quantization="gguf"), list)
