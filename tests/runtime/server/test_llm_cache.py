"""Hints and sessions through `LLM`, held against the same over HTTP."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from threading import Event
from typing import Any

import httpx
import pytest

from deeproot.engine.batch import ForwardBatch
from deeproot.runtime.cache_client import CacheClient
from deeproot.runtime.engine_setup import LoadedEngine
from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_cache import CacheHints, KeptRun
from deeproot.runtime.llm_completion import Completion
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sampling_options import OptionError, SamplingOptions
from deeproot.scheduler.flight import Forward, Pending
from deeproot.scheduler.invariants import check_idle
from deeproot.scheduler.loop import take_stats

from .harness import RunningServer, wait_until
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


LeasedRuns = list[tuple[int, int, int, float]]


def leases_of(llm: LLM) -> LeasedRuns:
    return _leased(llm._engine)


def leases_at(server: RunningServer) -> LeasedRuns:
    return _leased(server.engine)


def _leased(engine: LoadedEngine) -> LeasedRuns:
    running = engine.scheduler.cache.leases.running()
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
    assert leases_of(llm) == leases_at(server)
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


@pytest.mark.parametrize("lease_s", [None, 20.0, 0.0])
@pytest.mark.parametrize("started", [0, 40, 10**6])
def test_the_same_is_warmed(llm: LLM, server: RunningServer, lease_s: float | None, started: int) -> None:
    text = f"warm {lease_s} {started}: " + "abcdefgh " * 80  # several pieces
    if started:
        llm.generate(text[:started], FOUR)
        body = {"prompt": text[:started], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    said = {} if lease_s is None else {"lease_s": lease_s}
    probed = llm.warm(text, **said)
    with CacheClient(server.url) as client:
        told = client.post("/v1/cache/warm", {"prompt": text, "wait": True, **said})
        assert client.probe([text]).cached_tokens == llm.probe([text]).cached_tokens == (len(text),)
    assert (told["prompt_tokens"], told["cached_tokens"]) == (len(text), len(text))
    assert (probed.prompt_tokens, probed.cached_tokens) == ((len(text),), (len(text),))
    server.wait_idle()
    assert leases_of(llm) == leases_at(server)
    assert len(leases_of(llm)) == (lease_s != 0)
    scheduler = server.engine.scheduler
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))


class Gated:
    """The real forward pass, which notes how many tokens each step has and may be held up before one."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.sizes: list[int] = []
        self.before: Callable[[int], None] = lambda _: None

    def launch(self, batch: ForwardBatch) -> Pending:
        self.sizes.append(len(batch.input_ids))
        self.before(len(batch.input_ids))
        return self._forward.launch(batch)


def test_a_warming_waits_for_others_and_they_for_a_piece(tiny_options: EngineOptions) -> None:
    with LLM(replace(tiny_options, max_num_batched_tokens=512)) as llm:
        check_pieces(llm, Gated(llm._engine.scheduler.runner))
        check_idle(llm._engine.scheduler)


def check_pieces(llm: LLM, gated: Gated) -> None:
    """A long answer runs when the warming is asked for, and another request comes during its first piece."""
    llm._engine.scheduler.runner = gated
    first_piece, came = Event(), Event()

    def hold(size: int) -> None:
        if size == 256:
            first_piece.set()
            assert came.wait(20), "nobody came"

    gated.before = hold
    text = "warm beside others. " * 60
    with ThreadPoolExecutor(2) as threads:
        stream = llm.stream_chat(MESSAGES, SamplingOptions(max_tokens=40, temperature=0.0, ignore_eos=True))
        next(stream)
        warming = threads.submit(llm.warm, text)
        *_, last = stream
        assert isinstance(last, Completion)
        assert first_piece.wait(20)
        answer = threads.submit(llm.generate, "Who comes meanwhile?", FOUR)
        wait_until(lambda: len(llm._client._running) == 2)
        came.set()
        assert answer.result(20)[0].usage.output == 4
        assert warming.result(20).cached_tokens == (len(text),)
    prompt = last.usage.prompt
    # The whole answer, one piece, the whole answer of who came meanwhile, and the other pieces.
    assert gated.sizes == [
        prompt,
        *[1] * 39,
        256,
        len("Who comes meanwhile?"),
        1,
        1,
        1,
        *[256] * 3,
        1200 - 1024,
    ]


def test_a_warming_in_the_middle_of_a_stream_goes_on_when_the_engine_has_ended_it(llm: LLM) -> None:
    with closing(llm.stream_chat(MESSAGES, FOUR)) as stream:
        next(stream)
        assert llm.warm("meanwhile " * 40).cached_tokens == (400,)
    assert llm.warm([1, 2, 3], lease_s=0).cached_tokens == (3,)


@pytest.mark.parametrize(
    ("prompt", "lease_s", "said"),
    [("", 1, "empty"), ("x" * 5000, 1, "window"), ("x", float("nan"), "lease_s")],
)
def test_what_cannot_be_warmed_is_named(llm: LLM, prompt: str, lease_s: float, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        llm.warm(prompt, lease_s=lease_s)


def test_threads_that_warm_at_once_all_get_their_prompt(llm: LLM) -> None:
    texts = [f"{i}: " + "of many threads " * 30 for i in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for probed, text in zip(threads.map(llm.warm, texts), texts, strict=True):
            assert probed.cached_tokens == (len(text),)
    assert len(leases_of(llm)) == 4


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
