"""Grammars of requests in threads: masks are those of the output so far, compiling is shared, faults stay apart."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from deeproot.engine.batch import Int32Array
from deeproot.engine.grammar import GrammarError, TokenBytes, mask_width
from deeproot.engine.grammar_llguidance import NO_FORCING, LLGuidanceBackend
from deeproot.scheduler.compiling import CompilingRequests
from deeproot.scheduler.constraints import Constraint, Constraints
from deeproot.scheduler.messages import SamplingParams
from deeproot.scheduler.request import Request

END = 3
TOKENS = TokenBytes([b"a", b"b", b"ab", b"<end>"], frozenset([END]), frozenset([END]))
GRAMMAR = NO_FORCING + "start: /(ab)*/"


def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(TOKENS, len(TOKENS.pieces))


def start(constraints: Constraints, grammar: str) -> Constraint:
    done = threading.Event()
    pending = constraints.compile(grammar, done.set)
    assert done.wait(20)
    return pending.take()


def allowed(constraint: Constraint) -> list[int]:
    if constraint.pending is not None:
        constraint.pending.result()
    return [i for i in range(len(TOKENS.pieces)) if constraint.mask[0] >> i & 1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=4))
def test_masks_follow_each_output_on_its_own(walks: list[list[bool]]) -> None:
    """Each request writes `ab` as one token or as two; the requests that go on in a step advance together."""
    constraints = Constraints(backend())
    running = [start(constraints, GRAMMAR) for _ in walks]
    texts = [""] * len(walks)
    plans = [[token for joined in walk for token in ([2] if joined else [0, 1])] for walk in walks]
    for step in range(max(map(len, plans))):
        going = [i for i, plan in enumerate(plans) if step < len(plan)]
        for i in going:
            assert plans[i][step] in allowed(running[i])
            texts[i] += TOKENS.pieces[plans[i][step]].decode()
        constraints.advance([running[i] for i in going], [plans[i][step] for i in going])
        for constraint, text in zip(running, texts, strict=True):
            assert allowed(constraint) == ([1] if text.endswith("a") else [0, 2, END])
            assert constraint.error is None


def test_an_output_that_ends_allows_only_the_end() -> None:
    constraints = Constraints(backend())
    constraint = start(constraints, NO_FORCING + 'start: "ab"')
    constraints.advance([constraint], [2])
    assert allowed(constraint) == [END]


class CountingBackend(LLGuidanceBackend):
    """Counts, and waits in `compile` until it is let go."""

    def __init__(self) -> None:
        super().__init__(TOKENS, len(TOKENS.pieces))
        self.num_compiled = 0
        self.go = threading.Event()

    def compile(self, grammar: str) -> LLMatcher:
        self.num_compiled += 1
        assert self.go.wait(20)
        return super().compile(grammar)


def test_requests_with_one_grammar_share_its_compilation() -> None:
    counting = CountingBackend()
    constraints = Constraints(counting)
    pending = [constraints.compile(GRAMMAR, lambda: None) for _ in range(5)]
    assert not any(one.done for one in pending)
    counting.go.set()
    first, second, *_ = [one.compiled.result() and one.take() for one in pending]
    assert counting.num_compiled == 1
    constraints.advance([first], [0])
    assert allowed(first) == [1]
    assert allowed(second) == [0, 2, END]


def test_the_cache_of_grammars_is_bounded() -> None:
    counting = CountingBackend()
    counting.go.set()
    constraints = Constraints(counting, max_compiled=2)
    texts = [NO_FORCING + f'start: "{"ab" * i}"' for i in range(1, 4)]
    for text in (*texts, texts[2], texts[1]):
        start(constraints, text)
    assert counting.num_compiled == 3
    start(constraints, texts[0])
    assert counting.num_compiled == 4


def test_a_token_that_was_not_allowed_is_an_error_of_its_own_request() -> None:
    constraints = Constraints(backend())
    good, bad = start(constraints, GRAMMAR), start(constraints, GRAMMAR)
    constraints.advance([bad, good], [1, 0])
    assert allowed(good) == [1]
    assert good.error is None
    assert allowed(bad) == [0, 1, 2, END]
    assert bad.error is not None


class BrokenBackend(LLGuidanceBackend):
    """Computes the first mask of a grammar, and no other."""

    num_fills = 0

    def fill(self, matchers: Sequence[LLMatcher], masks: Int32Array) -> None:
        self.num_fills += 1
        if self.num_fills > 1:
            raise RuntimeError("no memory left")
        super().fill(matchers, masks)


def test_a_library_that_fails_is_an_error_of_the_constrained_requests() -> None:
    constraints = Constraints(BrokenBackend(TOKENS, len(TOKENS.pieces)))
    constraint = start(constraints, GRAMMAR)
    constraints.advance([constraint], [0])
    assert allowed(constraint) == [0, 1, 2, END]
    assert constraint.error == "RuntimeError: no memory left"


def test_grammars_that_cannot_be_compiled_are_refused_and_the_rest_goes_on() -> None:
    ready = threading.Semaphore(0)
    compiling = CompilingRequests(Constraints(backend()), ready.release)
    grammars = {"good": GRAMMAR, "bad": NO_FORCING + "start: nothing", "gone": GRAMMAR}
    for rid, grammar in grammars.items():
        compiling.add(Request(rid, b"\0" * 4, 1, SamplingParams(max_tokens=1, seed=0)), grammar)
    assert compiling.withdraw("gone") is not None
    assert compiling.withdraw("gone") is None
    for _ in grammars:
        assert ready.acquire(timeout=20)
    assert compiling.has_ready
    taken = {compiled.request.rid: compiled for compiled in compiling.take()}
    assert set(taken) == {"good", "bad"}
    assert taken["good"].error is None
    assert taken["good"].request.constraint is not None
    assert "nothing" in (taken["bad"].error or "")
    assert not compiling.has_ready
    assert compiling.requests() == []


def test_a_vocabulary_without_an_end_cannot_be_constrained() -> None:
    with pytest.raises(GrammarError, match="ends an output"):
        LLGuidanceBackend(TokenBytes([b"a"], frozenset(), frozenset()), 1)


@pytest.mark.parametrize("vocab_size", [2, 4, 31, 32, 33, 100])
def test_any_width_of_logits(vocab_size: int) -> None:
    tokens = TokenBytes(TOKENS.pieces, frozenset([1]), frozenset([1]))
    narrow = LLGuidanceBackend(tokens, vocab_size)
    masks = np.full((1, mask_width(vocab_size)), -1, np.int32)
    narrow.fill([narrow.compile(NO_FORCING + "start: /a*(ab)?/")], masks)
    bits = np.unpackbits(masks.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits[:vocab_size]).tolist() == [i for i in (0, 1, 2) if i < vocab_size]
