"""Fork, rewind and close of sessions against a model that knows nothing but lists of tokens."""

from collections.abc import Iterator, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from deeproot.engine.eviction import EvictionClass
from deeproot.engine.radix_node import TOKEN_BYTES
from deeproot.scheduler.answering import answer
from deeproot.scheduler.questions import ForkQuestion, LeaveQuestion, Question, SessionAnswer
from deeproot.scheduler.scheduler import Scheduler

from .rig import hinted, make_scheduler, request, run

PAGE = 4
NAMES = st.sampled_from(["a", "b", "c", "d"])
Pages = tuple[int, ...]
"""Stands for a page: the tokens from the start of its sequence to its end."""


def pages_of(tokens: Sequence[int]) -> Iterator[Pages]:
    return (tuple(tokens[:end]) for end in range(PAGE, len(tokens) + 1, PAGE))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)


def ask(scheduler: Scheduler, question: Question) -> SessionAnswer:
    told = answer(scheduler, question)
    assert isinstance(told, SessionAnswer)
    return told


def in_tree(scheduler: Scheduler, kind: EvictionClass | None = None) -> list[Pages]:
    """The tree's pages, all or those of a class."""
    found: list[Pages] = []
    for node in scheduler.cache.nodes():
        path, step = b"", node
        while step.parent is not None:
            path, step = step.key + path, step.parent
        tokens = memoryview(path).cast("i").tolist()
        if kind is None or node.rank == kind:
            found += [page for page in pages_of(tokens) if len(page) > node.start // TOKEN_BYTES]
    return found


class Sessions(RuleBasedStateMachine):
    """Four sessions that share beginnings; the pool is large enough for all that they say."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make_scheduler(PAGE, 2000, budget=64, max_len=200)
        self.said: list[list[int]] = []
        """Every sequence that was computed."""
        self.now: dict[str, list[int]] = {}
        """What each session would go on from."""
        self.ever: dict[str, set[Pages]] = {}
        """All pages that a session ever needed."""
        self.must_be_scratch: set[Pages] = set()
        self.count = 0

    @rule(name=NAMES, keep=st.integers(0, 8), tail=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def go_on(self, name: str, keep: int, tail: list[int]) -> None:
        """The next request: with what was said, or, after a compaction or an edit, with the beginning of it."""
        before = self.now.get(name, [])
        ids = (before[: keep * PAGE] if keep < 8 else before)[:80] + [t for t in tail for _ in range(PAGE)]
        self.count += 1
        self.scheduler.add(hinted(request(str(self.count), ids, 1), session=name))
        usage = run(self.scheduler)[str(self.count)][-1].usage
        assert usage is not None
        # The last token is always computed.
        assert usage.cached == min(max((common(ids, old) for old in self.said), default=0), len(ids) - 1)
        self.said.append(ids)
        self.leaves(name, before, common(before, ids))
        self.needs(name, ids)

    @rule(name=NAMES, new=NAMES)
    def fork(self, name: str, new: str) -> None:
        pages = self.scheduler.cache.num_pages
        told = ask(self.scheduler, ForkQuestion(b"", name.encode(), new.encode()))
        assert told.known == (name in self.now)
        assert self.scheduler.cache.num_pages == pages
        if told.known:
            assert told.taken == (new in self.now)
        if told.known and not told.taken:
            assert told.num_tokens == len(self.now[name])
            self.needs(new, list(self.now[name]))

    @rule(name=NAMES, keep=st.integers(1, 90))
    def rewind(self, name: str, keep: int) -> None:
        told = ask(self.scheduler, LeaveQuestion(b"", name.encode(), keep))
        assert told.known == (name in self.now)
        if told.known:
            before = self.now[name]
            kept = min(keep, len(before)) // PAGE * PAGE
            self.leaves(name, before, kept)
            self.needs(name, before[:kept])

    @rule(name=NAMES)
    def close(self, name: str) -> None:
        told = ask(self.scheduler, LeaveQuestion(b"", name.encode(), 0))
        assert told.known == (name in self.now)
        if told.known:
            self.leaves(name, self.now.pop(name), 0)

    def leaves(self, name: str, before: list[int], kept: int) -> None:
        left = {page for page in pages_of(before) if len(page) > kept}
        others = set().union(*(ever for other, ever in self.ever.items() if other != name))
        self.must_be_scratch |= left - others

    def needs(self, name: str, tokens: list[int]) -> None:
        self.now[name] = tokens
        mine = set(pages_of(tokens))
        self.ever[name] = self.ever.get(name, set()) | mine
        self.must_be_scratch -= mine

    @invariant()
    def each_page_is_there_once(self) -> None:
        found = in_tree(self.scheduler)
        assert len(found) == len(set(found)) == self.scheduler.cache.num_pages
        assert set(found) == {page for tokens in self.said for page in pages_of(tokens)}

    @invariant()
    def what_nobody_needs_goes_first_and_nothing_else(self) -> None:
        scratch = set(in_tree(self.scheduler, EvictionClass.SCRATCH))
        needed = {page for tokens in self.now.values() for page in pages_of(tokens)}
        assert not scratch & needed
        assert self.must_be_scratch <= scratch

    @invariant()
    def idle_sessions_hold_nothing(self) -> None:
        assert self.scheduler.cache.num_evictable == self.scheduler.cache.num_pages


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_a_session_that_is_gone_from_the_cache_is_still_closed() -> None:
    scheduler = make_scheduler(PAGE, 20, budget=64)
    scheduler.add(hinted(request("1", [1] * 16, 1), session="a"))
    run(scheduler)
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))
    assert ask(scheduler, LeaveQuestion(b"", b"a", 8)) == SessionAnswer(True)
    assert ask(scheduler, ForkQuestion(b"", b"a", b"b")) == SessionAnswer(True, num_tokens=16)
    assert ask(scheduler, LeaveQuestion(b"", b"a", 0)) == SessionAnswer(True)
    assert ask(scheduler, LeaveQuestion(b"", b"a", 0)) == SessionAnswer(False)
    assert ask(scheduler, LeaveQuestion(b"x", b"b", 0)) == SessionAnswer(False), "of another namespace"
