"""The operator's switch: leases keep what a flood would push out, and plain least recently used keeps nothing."""

from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_cache import CacheHints
from deeproot.runtime.sampling_options import SamplingOptions
from deeproot.scheduler.invariants import check_idle

PAGE, NUM_PAGES = 16, 64
ONE = SamplingOptions(max_tokens=1, seed=0, ignore_eos=True)
OPTIONS: dict[str, Any] = {
    "load_format": "dummy",
    "dtype": "float32",
    "device": "cpu",
    "page_size": PAGE,
    "kv_cache_memory_bytes": 2**18,
}


def text(name: str, pages: int) -> str:
    """So many pages of bytes, which no other name shares."""
    return (f"{name} is a text. " * PAGE * pages)[: PAGE * pages]


@pytest.mark.parametrize(("policy", "kept"), [("hints", 4 * PAGE), ("lru", 0)])
def test_leases_count_only_where_hints_are_heeded(tiny_model: Path, policy: str, kept: int) -> None:
    with LLM(tiny_model, radix_eviction_policy=policy, **OPTIONS) as llm:
        prompt = text("mine", 4)
        llm.generate(prompt, ONE, cache=CacheHints(lease_s=60))
        assert llm.probe([prompt]).cached_tokens[0] == 4 * PAGE
        for i in range(NUM_PAGES // 3):
            llm.generate(text(f"{i:04}", 4), ONE)
        assert llm.probe([prompt]).cached_tokens[0] == kept
        check_idle(llm._engine.scheduler)


@pytest.mark.parametrize(
    ("policy", "goes_first"), [("hints", "what the session left"), ("lru", "the oldest")]
)
def test_what_a_session_leaves_goes_first_only_then(tiny_model: Path, policy: str, goes_first: str) -> None:
    older, before, after = text("older", 6), text("mine", 6), text("mine", 3) + text("changed", 3)
    with LLM(tiny_model, radix_eviction_policy=policy, **OPTIONS) as llm:
        llm.generate(older, ONE)
        llm.generate(before, ONE, cache=CacheHints("one"))
        llm.generate(after, ONE, cache=CacheHints("one"))
        for i in range(NUM_PAGES):
            left = {
                "the oldest": llm.probe([older]).cached_tokens[0],
                "what the session left": llm.probe([before]).cached_tokens[0],
            }
            gone = [name for name, tokens in left.items() if tokens < 6 * PAGE]
            if gone:
                break
            llm.generate(text(f"{i:04}", 2), ONE)
        assert gone == [goes_first]
