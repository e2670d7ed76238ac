"""`LLM`: offline, in one process."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deeproot
from deeproot.runtime.chat.reply_events import ContentDelta
from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_completion import Completion
from deeproot.runtime.options import SetupError
from deeproot.runtime.sampling_options import OptionError, SamplingOptions
from deeproot.scheduler.invariants import check_idle

OPTIONS: dict[str, Any] = {
    "load_format": "dummy",
    "dtype": "float32",
    "device": "cpu",
    "page_size": 16,
    "kv_cache_memory_bytes": 2**20,
}
USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(tiny_model, **OPTIONS) as loaded:
        yield loaded
        check_idle(loaded._engine.scheduler)
    assert not engine_threads()


def engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("deeproot")]


def test_it_is_what_the_package_exports() -> None:
    assert deeproot.LLM is LLM


def test_prompts_come_back_in_order_and_as_alone(llm: LLM) -> None:
    sampling = SamplingOptions(max_tokens=12, seed=4, ignore_eos=True)
    prompts = [f"prompt number {i}" * (i + 1) for i in range(10)]
    together = llm.generate(prompts, sampling)
    alone = [llm.generate(prompt, sampling)[0] for prompt in prompts]
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert [result.text for result in together] == [result.text for result in alone]
    for prompt, result in zip(prompts, together, strict=True):
        assert result.finish_reason == "length"
        assert result.usage.prompt == len(prompt)
        assert result.usage.output == len(result.token_ids) == 12
        assert result.usage.cached + result.usage.computed == result.usage.prompt


def test_overlap_changes_nothing(llm: LLM, tiny_model: Path) -> None:
    sampling = SamplingOptions(max_tokens=12, seed=4)
    prompts = [f"prompt number {i}" * (i + 1) for i in range(10)]
    with LLM(tiny_model, **OPTIONS, overlap="on") as ahead:
        results = ahead.generate(prompts, sampling)
        scheduler = ahead._engine.scheduler
        check_idle(scheduler)
        assert scheduler.config.overlap
    expected = llm.generate(prompts, sampling)
    assert not llm._engine.scheduler.config.overlap, "without a GPU it is off"
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    assert [result.finish_reason for result in results] == [result.finish_reason for result in expected]


def test_a_completion_is_short_unless_more_is_asked_for(llm: LLM) -> None:
    assert llm.generate("x", SamplingOptions(ignore_eos=True))[0].usage.output == 16
    assert llm.chat(USER, SamplingOptions(ignore_eos=True)).usage.output > 16


def test_token_ids_are_prompts(llm: LLM) -> None:
    sampling = SamplingOptions(max_tokens=5, temperature=0)
    ids = llm._engine.speech.assets.tokenizer.encode_prompt("abc").tolist()
    assert llm.generate([ids], sampling)[0].token_ids == llm.generate("abc", sampling)[0].token_ids


def test_a_stop_string_ends_one_and_not_the_other(llm: LLM) -> None:
    free = llm.generate(["one", "two"], SamplingOptions(max_tokens=30, seed=1, ignore_eos=True))
    stop = next(c for c in free[0].text if c not in free[1].text and c != "\ufffd")
    results = llm.generate(
        ["one", "two"], SamplingOptions(max_tokens=30, seed=1, ignore_eos=True, stop=(stop,))
    )
    assert results[0].text == free[0].text.split(stop)[0]
    assert results[0].finish_reason == "stop"
    assert results[1].text == free[1].text
    assert results[1].finish_reason == "length"


def test_chat_streams_what_it_answers_whole(llm: LLM) -> None:
    sampling = SamplingOptions(max_tokens=30, seed=2)
    whole = llm.chat(USER, sampling)
    *events, last = llm.stream_chat(USER, sampling)
    assert isinstance(last, Completion)
    assert last.token_ids == whole.token_ids
    assert last.text == whole.text == "".join(e.text for e in events if isinstance(e, ContentDelta))
    assert last.usage.cached == whole.usage.prompt - 1


def test_a_stream_that_is_closed_early_leaves_nothing(llm: LLM) -> None:
    stream = llm.stream_chat(USER, SamplingOptions(max_tokens=1500, ignore_eos=True))
    next(stream)
    stream.close()
    check_idle(llm._engine.scheduler)


def test_tools_are_rendered(llm: LLM) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    with_tools = llm.chat(USER, SamplingOptions(max_tokens=1), tools=[tool])
    without = llm.chat(USER, SamplingOptions(max_tokens=1))
    assert with_tools.usage.prompt > without.usage.prompt + len(str(tool))


def test_what_cannot_be_is_a_value_error(llm: LLM) -> None:
    with pytest.raises(OptionError, match="max_tokens"):
        llm.generate("x", SamplingOptions(max_tokens=0))
    with pytest.raises(OptionError, match="empty"):
        llm.generate(["x", ""])
    with pytest.raises(OptionError, match="300"):
        llm.generate([[300]])
    with pytest.raises(OptionError, match="context window"):
        llm.generate("x" * 3000)
    with pytest.raises(ValueError, match=r"messages\[0\]"):
        llm.chat([{"role": "user", "content": 5}])
    assert llm.generate([]) == []


def test_what_cannot_be_loaded_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    for arguments, says in (
        ({"model": tmp_path / "none"}, "does not exist"),
        ({"model": tiny_model, "max_sequence_length": 5}, "max_sequence_length"),
        ({"model": tiny_model, **OPTIONS, "kv_cache_memory_bytes": 100}, "less than one page"),
        ({"model": tiny_model, **OPTIONS, "max_model_len": 4000}, "4000"),
        ({"model": tiny_model, **OPTIONS, "kv_cache_memory_bytes": 2**16, "max_model_len": 2000}, "2000"),
        ({"model": tiny_model, **OPTIONS, "max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"model": tiny_model}, "safetensors"),
    ):
        with pytest.raises(SetupError) as caught:
            LLM(**arguments)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not engine_threads()


def test_one_that_nobody_closes_ends_when_it_is_collected(tiny_model: Path) -> None:
    llm = LLM(tiny_model, **OPTIONS)
    llm.generate("x", SamplingOptions(max_tokens=2))
    assert engine_threads()
    del llm
    gc.collect()
    assert not engine_threads()


def test_closing_twice_is_fine(tiny_model: Path) -> None:
    llm = LLM(tiny_model, **OPTIONS)
    llm.close()
    llm.close()
    assert not engine_threads()


def test_progress_is_told(tiny_model: Path) -> None:
    seen: list[tuple[int, int]] = []
    with LLM(tiny_model, on_progress=lambda done, total: seen.append((done, total)), **OPTIONS):
        pass
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_the_real_model(smollm2_path: Path) -> None:
    with LLM(smollm2_path, kv_cache_memory_bytes=2**28) as llm:
        greedy = SamplingOptions(temperature=0, max_tokens=20)
        assert (
            "Paris" in llm.chat([{"role": "user", "content": "What is the capital of France?"}], greedy).text
        )
        assert llm.generate("The capital of France is", greedy)[0].text.startswith(" Paris")
