"""Hints and sessions through `LLM`, held against the same over HTTP."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_cache import CacheHints, KeptRun
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sampling_options import OptionError, SamplingOptions
from deeproot.scheduler.invariants import check_idle
from deeproot.scheduler.loop import take_stats

from .harness import RunningServer
from .test_hints import chat, leases

SYSTEM = {"role": "system", "content": "You plan travels, and you ask before you book. " * 3}
MESSAGES = [
    SYSTEM,
    {"role": "user", "content": "Where to? " * 6},
    {"role": "assistant", "content": "To the sea. " * 6},
    {"role": "user", "content": "And then? " * 9},
]
FOUR = SamplingOptions(max_tokens=4, temperature=0.0, ignore_eos=True)


@pytest.fixture
def llm(tiny_options: EngineOptions) -> Iterator[LLM]:
    with LLM(tiny_options) as loaded:
        yield loaded
        check_idle(loaded._engine.scheduler)


def leases_of(llm: LLM) -> list[tuple[int, int, int, float]]:
    running = llm._engine.scheduler.cache.leases.running()
    return sorted((one.rank, one.start, one.node.end, one.seconds) for one in running if one.node is not None)


@pytest.mark.parametrize(
    "hints",
    [
        CacheHints(lease_s=50),
        CacheHints(session_id="s", boundaries=[KeptRun("root", 600, messages=1, priority=3)]),
        CacheHints(lease_s=9, boundaries=[KeptRun("root", 60, token=64), KeptRun("trunk", 30, messages=3)]),
        CacheHints(session_id="s"),
    ],
)
def test_the_same_hints_lease_the_same(llm: LLM, server: RunningServer, hints: CacheHints) -> None:
    # The server leases by itself what several conversations begin with.
    messages = [{"role": "system", "content": f"Of one test: {hints}. " * 2}, *MESSAGES[1:]]
    llm.chat(messages, FOUR, cache=hints)
    own: dict[str, Any] = {
        "boundaries": [
            {name: value for name, value in asdict(run).items() if value is not None}
            for run in hints.boundaries
        ]
    }
    own |= {"lease_s": hints.lease_s} if hints.lease_s else {}
    own |= {"session_id": hints.session_id} if hints.session_id else {}
    chat(server, messages, temperature=0, ignore_eos=True, deeproot=own)
    assert (len(leases(server)) > 0) == bool(hints.lease_s or hints.boundaries)
    running = server.engine.scheduler.cache.leases.running()
    over_http = sorted(
        (one.rank, one.start, one.node.end, one.seconds) for one in running if one.node is not None
    )
    assert leases_of(llm) == over_http
    server.wait_idle()
    scheduler = server.engine.scheduler
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))


def test_a_session_is_forked_rewound_and_closed(llm: LLM) -> None:
    hints = CacheHints(session_id="a")
    llm.generate("The first part of it. " * 8, FOUR, cache=hints)
    assert llm.fork_session("a", "b") >= 8 * 22
    with pytest.raises(ValueError, match="already"):
        llm.fork_session("a", "b")
    assert llm.rewind_session("a", 32) == 0, "the fork needs the rest"
    assert llm.rewind_session("b", "The first part of it. " * 4) == (8 * 22 + 3 + 15) // 16 - 88 // 16
    assert take_stats(llm._engine.scheduler).num_scratch_pages > 0
    assert llm.close_session("b") > 0
    for gone in (llm.close_session, lambda name: llm.rewind_session(name, 5)):
        with pytest.raises(KeyError, match="no session 'b'"):
            gone("b")
    with pytest.raises(OptionError, match="close it"):
        llm.rewind_session("a", 0)
    assert llm.generate("The first part of it. " * 8, FOUR)[0].usage.cached > 100, "scratch is a hit, too"


def test_a_call_without_hints_leases_nothing(llm: LLM) -> None:
    llm.generate(["one. " * 20, "two. " * 20], FOUR, n=2)
    llm.chat(MESSAGES, FOUR)
    assert leases_of(llm) == []
    llm.generate(["one. " * 20, "two. " * 20], FOUR, cache=CacheHints(lease_s=30))
    assert len(leases_of(llm)) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"zone": "branch", "lease_s": 1, "token": 1}, "zone"),
        ({"zone": "root", "lease_s": -1, "token": 1}, "lease_s"),
        ({"zone": "root", "lease_s": 1}, "either messages"),
        ({"zone": "root", "lease_s": 1, "token": 1, "messages": 1}, "either messages"),
        ({"zone": "root", "lease_s": 1, "token": 0}, "token 1"),
        ({"zone": "root", "lease_s": 1, "token": 1, "priority": 16}, "priority"),
    ],
)
def test_a_run_that_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        KeptRun(**fields)


def test_runs_that_the_prompt_does_not_have_are_refused(llm: LLM) -> None:
    behind = CacheHints(boundaries=[KeptRun("root", 1, messages=5)])
    with pytest.raises(OptionError, match=r"boundaries\[0\].messages is 5"):
        llm.chat(MESSAGES, FOUR, cache=behind)
    with pytest.raises(OptionError, match="token"):
        llm.generate("x", FOUR, cache=behind)
    with pytest.raises(OptionError, match="lease_s"):
        CacheHints(lease_s=float("nan"))
