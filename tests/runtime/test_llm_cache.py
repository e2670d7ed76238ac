"""Hints and sessions through `LLM`: what is kept while others need room, and what goes first."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_cache import CacheHints, Kept, SessionError
from deeproot.runtime.sampling_options import OptionError, SamplingOptions
from deeproot.scheduler.invariants import check_idle

PAGE, NUM_PAGES = 16, 64
ONE = SamplingOptions(max_tokens=1, seed=0, ignore_eos=True)


@pytest.fixture
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(
        tiny_model,
        load_format="dummy",
        dtype="float32",
        device="cpu",
        page_size=PAGE,
        kv_cache_memory_bytes=2**18,
    ) as loaded:
        yield loaded
        check_idle(loaded._engine.scheduler)


def text(name: str, pages: int) -> str:
    """So many pages of bytes, which no other name shares."""
    return (f"{name} is a text. " * PAGE * pages)[: PAGE * pages]


def cached(llm: LLM, prompt: str) -> int:
    return llm.probe([prompt]).cached_tokens[0]


def flood(llm: LLM) -> None:
    """One prompt after another, more than the pool holds."""
    for i in range(NUM_PAGES // 3):
        llm.generate(text(f"{i:04}", 4), ONE)


@pytest.mark.parametrize(
    ("hints", "kept"),
    [
        (None, 0),
        (CacheHints(), 0),
        (CacheHints(lease_s=60), 4 * PAGE),
        (CacheHints(parts=[Kept(2 * PAGE, "root", 60)]), 2 * PAGE),
        (CacheHints(parts=[Kept(3 * PAGE, "leaf", 0), Kept(PAGE, "trunk", 60, priority=3)]), PAGE),
    ],
)
def test_what_is_leased_outlives_a_flood(llm: LLM, hints: CacheHints | None, kept: int) -> None:
    prompt = text("mine", 4)
    llm.generate(prompt, ONE, hints=hints)
    assert cached(llm, prompt) == 4 * PAGE
    flood(llm)
    assert cached(llm, prompt) == kept


def test_chats_have_hints_too(llm: LLM) -> None:
    messages = [{"role": "user", "content": text("mine", 4)}]
    prompt = llm.chat_tokens(messages)
    llm.chat(messages, ONE, hints=CacheHints(parts=[Kept(len(prompt), "trunk", 60)]))
    flood(llm)
    assert llm.probe([prompt]).cached_tokens[0] == len(prompt) // PAGE * PAGE, "pages are kept whole"


def test_what_a_session_leaves_goes_before_older_prompts(llm: LLM) -> None:
    older, before, after = text("older", 6), text("mine", 6), text("mine", 3) + text("changed", 3)
    llm.generate(older, ONE)
    llm.generate(before, ONE, hints=CacheHints("one"))
    llm.generate(after, ONE, hints=CacheHints("one"))
    for i in range(NUM_PAGES):
        if cached(llm, before) < 6 * PAGE:
            break
        llm.generate(text(f"{i:04}", 2), ONE)
    assert cached(llm, before) < 6 * PAGE, "nothing was evicted"
    assert cached(llm, older) == cached(llm, after) == 6 * PAGE


def test_sessions_fork_rewind_and_close(llm: LLM) -> None:
    llm.generate(text("mine", 4), ONE, hints=CacheHints("one"))
    common = llm.sessions.fork("one", "two")
    assert common == 4 * PAGE + 1 or common == 4 * PAGE
    with pytest.raises(SessionError, match="new_id"):
        llm.sessions.fork("one", "two")
    assert llm.sessions.rewind("one", 2 * PAGE) == 0, "the other session needs them"
    assert llm.sessions.close("two") > 0
    assert llm.sessions.close("one") > 0
    for ask in (llm.sessions.close, lambda name: llm.sessions.rewind(name, 1)):
        with pytest.raises(SessionError, match="no session 'one'"):
            ask("one")
    with pytest.raises(ValueError, match="keep_tokens"):
        llm.sessions.rewind("one", 0)


@pytest.mark.parametrize(
    ("hints", "field"),
    [
        (CacheHints(lease_s=-1), "hints.lease_s"),
        (CacheHints(lease_s=math.inf), "hints.lease_s"),
        (CacheHints(parts=[Kept(1, "leaf", 1), Kept(0, "leaf", 1)]), "hints.parts[1].tokens"),
        (CacheHints(parts=[Kept(1, "stem", 1)]), "hints.parts[0].zone"),  # type: ignore[arg-type]  # the point
        (CacheHints(parts=[Kept(1, "leaf", math.nan)]), "hints.parts[0].lease_s"),
        (CacheHints(parts=[Kept(1, "leaf", 1, priority=16)]), "hints.parts[0].priority"),
    ],
)
def test_hints_that_cannot_be_are_errors_that_name_them(llm: LLM, hints: CacheHints, field: str) -> None:
    with pytest.raises(OptionError) as caught:
        llm.generate("a", ONE, hints=hints)
    assert caught.value.field == field
    assert field in str(caught.value)
