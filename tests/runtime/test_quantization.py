"""Quantised weights from the options to the answer, and what is said where they cannot be had."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType
from tests.engine.gguf_files import write_gguf
from tests.engine.hf import tiny_llama

from deeproot.engine.grammar import TokenBytes
from deeproot.kernels.cpu.build import Abilities, abilities_here
from deeproot.runtime.engine_setup import load_engine, load_scheduler
from deeproot.runtime.llm import LLM
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.sampling_options import SamplingOptions

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
compiled = pytest.mark.skipif(not abilities_here().bf16, reason="this CPU does not compute in bfloat16")
PROMPT = "The three primary colours are"


def options(model: Path, **changes: Any) -> EngineOptions:
    settings: dict[str, Any] = {"device": "cpu", "max_model_len": 96, "kv_cache_memory_bytes": 2**23}
    return EngineOptions(model=str(model), **{**settings, **changes})


@pytest.fixture(scope="module")
def quantised_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantised")
    return write_gguf(folder / "m.gguf", "llama", tiny_llama(folder, **SIZES), GGMLQuantizationType.Q4_1)


def no_tokens() -> TokenBytes:
    return TokenBytes([], frozenset(), frozenset())


@compiled
def test_cached_and_uncached_answers_are_the_same(
    smollm2_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the form that is used unless another is asked for: a prompt, and a conversation whose replies were computed
    token by token, where a server without a cache computes them as a prompt."""
    sampling = SamplingOptions(max_tokens=16, temperature=0)
    with caplog.at_level(logging.INFO, logger="deeproot"), LLM(options(smollm2_path)) as llm:
        assert "quantised ones stay so (--quantization auto)" in caplog.text
        [first] = llm.generate(PROMPT, sampling)
        [again] = llm.generate(PROMPT, sampling)
        assert again.usage.cached > 0 == first.usage.cached
        assert again.token_ids == first.token_ids
        longer = PROMPT + first.text
        [behind_reply] = llm.generate(longer, sampling)
        assert behind_reply.usage.cached > again.usage.cached
    with LLM(options(smollm2_path)) as llm:
        [anew] = llm.generate(longer, sampling)
        assert anew.usage.cached == 0
        assert anew.token_ids == behind_reply.token_ids


IMPOSSIBLE = pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float32"}, "activations must be .*--dtype bfloat16"),
        ({"dtype": "bfloat16", "attention_backend": "torch"}, "attention is torch's"),
        ({"dtype": "bfloat16", "deterministic": True}, "not cpu: .*--deterministic"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype auto"),
    ],
    ids=["dtype", "backend", "deterministic", "fp8"],
)


@IMPOSSIBLE
def test_what_cannot_be_had_is_refused_in_a_sentence(
    quantised_file: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("deeproot.engine.quantization.abilities_here", lambda: Abilities(bf16=True))
    with pytest.raises(SetupError, match=f"--quantization gguf: .*{words}.*--quantization auto"):
        load_scheduler(options(quantised_file, quantization="gguf", **changes), no_tokens)


@IMPOSSIBLE
def test_auto_goes_on_without(
    quantised_file: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], words: str
) -> None:
    with caplog.at_level(logging.INFO, logger="deeproot"):
        load_scheduler(options(quantised_file, **changes), no_tokens)
    assert re.search(
        f"weights do not stay quantised: .*{words if abilities_here().bf16 else ''}", caplog.text
    )


def test_a_cpu_that_cannot_multiply_them(
    quantised_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("deeproot.engine.quantization.abilities_here", Abilities)
    with caplog.at_level(logging.INFO, logger="deeproot"):
        load_scheduler(options(quantised_file), no_tokens)
    assert "weights do not stay quantised: this CPU has not AVX-512" in caplog.text
    with pytest.raises(SetupError, match="--quantization gguf: this CPU has not AVX-512"):
        load_scheduler(options(quantised_file, quantization="gguf"), no_tokens)


def test_made_up_weights(tiny_model: Path) -> None:
    load_engine(options(tiny_model, load_format="dummy"))
    with pytest.raises(SetupError, match="--quantization gguf: made-up weights"):
        load_engine(options(tiny_model, load_format="dummy", quantization="gguf"))


def test_a_model_that_is_no_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_llama(tmp_path)
    monkeypatch.setattr("deeproot.runtime.engine_setup.grouped_problem", lambda needs, attention: None)
    with pytest.raises(SetupError, match="--quantization gguf: the model is no GGUF file"):
        load_scheduler(options(tmp_path, quantization="gguf"), no_tokens)
