"""Deterministic mode through the whole engine: scheduler, cache, drafts and sampling."""

import dataclasses
from pathlib import Path

import pytest

from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_completion import Completion
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.sampling_options import SamplingOptions

COMMON = "You are a careful agent who fixes failing tests and says what was done. " * 2
PROMPTS = [f"{COMMON}Task {i}: {'look at ' * i}tests/test_{i}.py" for i in range(8)]


@pytest.fixture(scope="module")
def options(tiny_model: Path) -> EngineOptions:
    return EngineOptions(
        model=str(tiny_model),
        load_format="dummy",
        dtype="float32",
        device="cpu",
        page_size=16,
        kv_cache_memory_bytes=4 * 2**20,
        max_num_batched_tokens=64,
        deterministic=True,
    )


def said(completion: Completion) -> tuple[object, ...]:
    """Tokens and their logarithms to the last bit."""
    assert completion.finish_reason == "length"
    return completion.token_ids, completion.logprobs


def test_alone_together_cached_and_in_other_chunks(options: EngineOptions) -> None:
    sampling = SamplingOptions(max_tokens=12, temperature=1.0, seed=7, logprobs=3, ignore_eos=True)
    with LLM(options) as llm:
        alone = [said(llm.generate(prompt, sampling)[0]) for prompt in PROMPTS]
        again = llm.generate(PROMPTS[3], sampling)[0]
        assert again.usage.cached > 100
        assert said(again) == alone[3]
    with LLM(dataclasses.replace(options, max_num_batched_tokens=256)) as llm:
        # Seeds count on over the results of a prompt only: each of these has seed 7, as alone.
        together = [said(one) for one in llm.generate(PROMPTS, sampling)]
    assert together == alone


def test_the_check_needs_pages(options: EngineOptions) -> None:
    with pytest.raises(SetupError, match="--kv-cache-memory-bytes"):
        load_engine(dataclasses.replace(options, kv_cache_memory_bytes=5000))


def test_backends_that_cannot_are_refused(options: EngineOptions) -> None:
    with pytest.raises(SetupError, match="flash"):
        load_engine(dataclasses.replace(options, attention_backend="flash"))
    with pytest.raises(SetupError, match="deterministic"):
        load_engine(dataclasses.replace(options, attention_backend="cpu"))
