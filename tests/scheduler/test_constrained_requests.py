"""Requests with grammars among others, under any load: each keeps to its own grammar, and nobody else notices."""

import re
import threading
import time

import numpy as np
import pytest
from echo_model import VOCAB, EchoModel, EchoStep, make_pool, next_token
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from deeproot.engine.batch import ForwardBatch, Int32Array
from deeproot.engine.grammar import TokenBytes
from deeproot.engine.grammar_llguidance import NO_FORCING, LLGuidanceBackend
from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.constraints import Constraints
from deeproot.scheduler.invariants import check, check_idle
from deeproot.scheduler.loop import EngineLoop
from deeproot.scheduler.messages import AbortRequest, AddRequest, SamplingParams, TokenOutput
from deeproot.scheduler.scheduler import Scheduler

STOP = 7
PIECES = [b"a", b"b", b"c", b"ab", b"aca", b"bb", b"d", b"<end>", *(b"x%d" % i for i in range(8, VOCAB))]
TOKENS = TokenBytes(PIECES, frozenset([STOP]), frozenset([STOP]))
# Whatever is allowed can be continued: a vocabulary of bytes always can, this one has no single digits.
PATTERNS = ["(ab|ac)*", "a+b", "d?(bb)*c", "x[0-9]{1,2}a"]


class MaskedModel(EchoModel):
    """Of the tokens that a mask allows, one that the whole sequence decides."""

    def _compute(self, batch: ForwardBatch, before: EchoStep | None) -> Int32Array:
        tokens = super()._compute(batch, before)
        if batch.sampling.mask is not None:
            mask = batch.sampling.mask.result()
            for row, words in zip(mask.rows.tolist(), mask.words, strict=True):
                allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCAB])
                tokens[row] = allowed[tokens[row] % len(allowed)]
        return tokens


def make_scheduler(
    num_pages: int = 64, overlap: bool = False, backend: LLGuidanceBackend | None = None
) -> Scheduler:
    pool = make_pool(4, num_pages)
    config = SchedulerConfig(6, 24, min(96, 4 * num_pages), overlap, reserved_output=1)
    constraints = Constraints(backend or LLGuidanceBackend(TOKENS, VOCAB))
    return Scheduler(config, RadixCache(4), pool, MaskedModel(pool), constraints)


def request(rid: str, ids: list[int], pattern: str | None, max_tokens: int = 20) -> AddRequest:
    grammar = None if pattern is None else f"{NO_FORCING}start: /{pattern}/"
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, stop_token_ids=(STOP,), grammar=grammar)
    return AddRequest(rid, np.asarray(ids, dtype=np.int32).tobytes(), sampling)


def run(scheduler: Scheduler) -> dict[str, list[TokenOutput]]:
    """Until no request is left, waiting for compilations."""
    outputs: dict[str, list[TokenOutput]] = {}
    deadline = time.monotonic() + 60
    while scheduler.requests() or scheduler.has_work:
        assert time.monotonic() < deadline, "no end"
        for output in scheduler.step():
            outputs.setdefault(output.rid, []).append(output)
        check(scheduler)
    check_idle(scheduler)
    return outputs


def ids_of(outputs: list[TokenOutput]) -> list[int]:
    return [output.token_id for output in outputs if output.token_id is not None]


def text_of(outputs: list[TokenOutput]) -> str:
    return b"".join(PIECES[token] for token in ids_of(outputs) if token != STOP).decode()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.sampled_from([None, *PATTERNS])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([12, 16, 64]),
    st.booleans(),
)
def test_any_load(load: list[tuple[list[int], str | None]], num_pages: int, overlap: bool) -> None:
    """Few pages make for preemptions, after which an output goes on in its grammar."""
    scheduler = make_scheduler(num_pages, overlap)
    for i, (ids, pattern) in enumerate(load):
        scheduler.add(request(str(i), ids, pattern))
    outputs = run(scheduler)
    for i, (ids, pattern) in enumerate(load):
        lone = make_scheduler()
        lone.add(request("lone", ids, pattern))
        assert ids_of(outputs[str(i)]) == ids_of(run(lone)["lone"])
        end = outputs[str(i)][-1].finish_reason
        assert end in ("stop", "length")
        if pattern is not None and end == "stop":
            assert re.fullmatch(pattern, text_of(outputs[str(i)]))


def test_an_output_cut_by_its_length_has_begun_its_form() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("r", [1, 2], "(ab|ac){9}", max_tokens=3))
    outputs = run(scheduler)["r"]
    assert outputs[-1].finish_reason == "length"
    assert re.fullmatch("((ab|ac)*a?)", text_of(outputs))


def test_a_grammar_that_cannot_be_compiled_is_its_own_requests_error() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("bad", [1], "("))
    scheduler.add(request("good", [1], "ab"))
    outputs = run(scheduler)
    (bad,) = outputs["bad"]
    assert bad.finish_reason == "error"
    assert bad.invalid
    assert "form that was asked for" in (bad.error or "")
    assert text_of(outputs["good"]) == "ab"


def test_without_a_backend_grammars_are_refused_and_others_served() -> None:
    pool = make_pool(4, 16)
    scheduler = Scheduler(SchedulerConfig(4, 16, 64), RadixCache(4), pool, EchoModel(pool))
    scheduler.add(request("bad", [1], "ab"))
    scheduler.add(request("good", [1], None, max_tokens=1))
    outputs = run(scheduler)
    assert outputs["bad"][-1].invalid
    assert ids_of(outputs["good"]) == [next_token([1])]


class FailingMatchers(LLGuidanceBackend):
    """Says of every matcher that has read two tokens that it cannot go on."""

    def __init__(self) -> None:
        super().__init__(TOKENS, VOCAB)
        self.num_read: dict[int, int] = {}

    def accept(self, matchers: list[LLMatcher], token_ids: list[int]) -> None:  # type: ignore[override]
        super().accept(matchers, token_ids)
        for matcher in matchers:
            self.num_read[id(matcher)] = self.num_read.get(id(matcher), 0) + 1

    def error(self, matcher: LLMatcher) -> str | None:
        return "too complex" if self.num_read.get(id(matcher), 0) >= 2 else None


@pytest.mark.parametrize("overlap", [False, True])
def test_a_grammar_that_cannot_go_on_ends_its_own_request(overlap: bool) -> None:
    scheduler = make_scheduler(overlap=overlap, backend=FailingMatchers())
    scheduler.add(request("r", [1], "[abc]{30}"))
    scheduler.add(request("free", [2], None, max_tokens=8))
    outputs = run(scheduler)
    assert outputs["r"][-1].finish_reason == "error"
    assert "too complex" in (outputs["r"][-1].error or "")
    assert len(ids_of(outputs["r"])) == 2
    assert outputs["free"][-1].finish_reason in ("stop", "length")


class SlowCompiler(LLGuidanceBackend):
    """Compiles when it is let."""

    def __init__(self) -> None:
        super().__init__(TOKENS, VOCAB)
        self.go = threading.Event()

    def compile(self, grammar: str) -> LLMatcher:
        assert self.go.wait(60)
        return super().compile(grammar)


def test_others_run_while_a_grammar_is_compiled_and_the_loop_wakes_when_it_is() -> None:
    backend = SlowCompiler()
    scheduler = make_scheduler(backend=backend)
    ended: dict[str, TokenOutput] = {}
    news = threading.Condition()

    def emit(outputs: list[TokenOutput]) -> None:
        with news:
            ended.update({output.rid: output for output in outputs if output.finish_reason is not None})
            news.notify_all()

    loop = EngineLoop(scheduler, emit)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        for rid in ("waits", "gone"):
            loop.submit(request(rid, [1], "ab"))
        loop.submit(request("free", [2], None, max_tokens=4))
        with news:
            assert news.wait_for(lambda: "free" in ended, 60)
        loop.submit(AbortRequest("gone"))
        with news:
            assert news.wait_for(lambda: "gone" in ended, 60)
            assert "waits" not in ended
        backend.go.set()
        with news:
            assert news.wait_for(lambda: "waits" in ended, 60)
        assert ended["waits"].finish_reason == "stop"
        assert ended["gone"].finish_reason == "abort"
        assert loop.inspect(lambda s: check_idle(s)).result(60) is None
    finally:
        backend.go.set()
        loop.stop()
        thread.join(60)
    assert not thread.is_alive()


def test_a_loop_that_stops_aborts_what_waits_for_a_grammar() -> None:
    backend = SlowCompiler()
    scheduler = make_scheduler(backend=backend)
    ended: list[TokenOutput] = []
    loop = EngineLoop(scheduler, ended.extend)
    loop.submit(request("waits", [1], "ab"))
    loop.stop()
    loop.run()
    backend.go.set()
    assert [(output.rid, output.finish_reason) for output in ended] == [("waits", "abort")]
