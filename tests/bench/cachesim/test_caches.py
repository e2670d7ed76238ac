"""The cache models against plain models of the same rules that keep lists and compare everything with everything."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from echo_model import EchoModel, make_pool
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deeproot.bench.cachesim.call import CacheModel, Call, Served
from deeproot.bench.cachesim.hosted import AutomaticCache, BreakpointCache, HostedRules
from deeproot.bench.cachesim.own_tree import OwnTree
from deeproot.bench.cachesim.sglang_tree import SglangTree
from deeproot.bench.cachesim.vllm_pages import VllmPages
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_checks import check_tree
from deeproot.runtime.context.measure.prices import PriceTable, cost_of_calls
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.scheduler import Scheduler

few = settings(max_examples=80, deadline=None)
Load = list[tuple[list[int], list[int]]]


@st.composite
def any_load(draw: st.DrawFn, most: int = 14) -> Load:
    """Prompts and answers; most prompts go on from somewhere in an earlier one or its answer."""
    known: list[list[int]] = [[]]
    made: Load = []
    for _ in range(draw(st.integers(2, most))):
        base = known[draw(st.integers(0, len(known) - 1))]
        cut = draw(st.one_of(st.just(len(base)), st.integers(0, len(base))))
        prompt = base[: min(cut, 30)] + draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
        answer = draw(st.lists(st.integers(0, 2), max_size=4))
        known.append(prompt + answer)
        made.append((prompt, answer))
    return made


def call(
    prompt: Sequence[int], answer: Sequence[int] = (), time_s: float = 0.0, **parts: tuple[int, ...]
) -> Call:
    return Call("s", time_s, np.array(prompt, np.int32), np.array(answer, np.int32), **parts)


_NO_ROOM_TO_SPARE = 30


@few
@given(any_load(20), st.integers(1, 4), st.integers(12, _NO_ROOM_TO_SPARE), st.integers(2, 40))
def test_own_tree_reuses_what_the_scheduler_reuses(
    load: Load, page_size: int, pages: int, chunk: int
) -> None:
    """With so few pages that most loads evict, and steps that cut prompts into chunks."""
    pool = make_pool(page_size, pages)
    window = min(96, pages * page_size)
    scheduler = Scheduler(SchedulerConfig(1, chunk, window), RadixCache(page_size), pool, EchoModel(pool))
    model = OwnTree(pages, page_size, chunk)
    for i, (prompt, _) in enumerate(load):
        if len(prompt) + 3 > window:
            continue
        sampling = SamplingParams(max_tokens=3, temperature=0.0, seed=0)
        scheduler.add(AddRequest(str(i), np.asarray(prompt, np.int32).tobytes(), sampling))
        outputs = []
        while scheduler.has_work:
            outputs += scheduler.step()
        answer = [output.token_id for output in outputs if output.token_id is not None]
        assert model.serve(call(prompt, answer)) == Served(outputs[-1].usage.cached)


# A page that is partly matched is the only one that could be evicted: it cannot be copied then.
@few
@example([([0, 1, 2, 0, 1, 2], [1, 1, 1]), ([0, 1, 2, 0, 1, 1], [1])], 4, 2)
@given(any_load(), st.integers(1, 4), st.integers(4, 20))
def test_own_tree_with_few_pages_keeps_account_of_them(load: Load, page_size: int, pages: int) -> None:
    model = OwnTree(pages, page_size)
    for i, (prompt, answer) in enumerate(load):
        made = call(prompt, answer)
        before = [call(*earlier).computed_ids for earlier in load[:i]]
        best = max((common_prefix(made.prompt, ids) for ids in before), default=0)
        served = model.serve(made)
        assert served.cached <= min(best, len(prompt) - 1)
        assert served.refused == (-(-made.computed_ids.size // page_size) > pages)
        assert model.cache.num_pages + model.pool.num_free == pages
        assert model.cache.num_evictable == model.cache.num_pages
        check_tree(model.cache)


class ListedPages:
    """vLLM's rules over a list of pages, the next to be taken first: the tokens up to a page's end, and its age. Of
    pages that know the same, the oldest is used. A page that is not full comes back to the front."""

    def __init__(self, num_pages: int, size: int) -> None:
        self.free: list[tuple[int, tuple[int, ...] | None]] = [(0, None)] * num_pages
        self.size, self.now = size, 0

    def serve(self, made: Call) -> int | None:
        tokens = tuple(made.computed_ids.tolist())
        needed = -(-len(tokens) // self.size)
        if needed > len(self.free):
            return None
        ends = [tokens[:end] for end in range(self.size, len(tokens) + 1, self.size)]
        held: list[tuple[int, tuple[int, ...] | None]] = []
        for end in ends:
            known = [page for page in self.free if page[1] == end]
            if len(end) >= made.prompt.size or not known:
                break
            held.append(min(known))
            self.free.remove(held[-1])
        hits = len(held)
        del self.free[: needed - hits]
        for end in ends[hits:]:
            self.now += 1
            held.append((self.now, end))
        self.free = [(0, None)] * (needed - len(ends)) + self.free + held[::-1]
        return hits * self.size


@few
@given(any_load(), st.integers(1, 4), st.integers(3, 20))
def test_vllm_pages(load: Load, size: int, pages: int) -> None:
    model, plain = VllmPages(pages, size), ListedPages(pages, size)
    for prompt, answer in load:
        expected = plain.serve(call(prompt, answer))
        served = Served(0, refused=True) if expected is None else Served(expected)
        assert model.serve(call(prompt, answer)) == served


class ListedRuns:
    """SGLang's rules over a flat list: each run of tokens as all tokens up to its end, where it starts, its last use."""

    def __init__(self, num_tokens: int, size: int) -> None:
        self.runs: dict[tuple[int, ...], tuple[int, int]] = {}
        self.total, self.size, self.now = num_tokens // size * size, size, 0

    def serve(self, made: Call) -> int | None:
        tokens, prompt = tuple(made.computed_ids.tolist()), tuple(made.prompt.tolist())
        needed = -(-len(tokens) // self.size) * self.size
        if needed > self.total:
            return None
        cached = self.use(prompt[: (len(prompt) - 1) // self.size * self.size])
        locked = [run for run in self.runs if prompt[: len(run)] == run and len(run) <= cached]
        while needed - cached > self.total - self.held():
            ends = [
                r
                for r in self.runs
                if not any(o != r and o[: len(r)] == r for o in self.runs) and r not in locked
            ]
            del self.runs[min(ends, key=lambda run: self.runs[run][1])]
        kept = tokens[: len(tokens) // self.size * self.size]
        at = self.use(kept)
        if at < len(kept):
            self.runs[kept] = (at, self.now)
        return cached

    def use(self, tokens: tuple[int, ...]) -> int:
        self.now += 1
        shared = [
            max(n for n in range(0, min(len(run), len(tokens)) + 1, self.size) if run[:n] == tokens[:n])
            for run in self.runs
        ]
        most = max(shared, default=0)
        for run, (start, used) in list(self.runs.items()):
            if start < most < len(run) and run[:most] == tokens[:most]:
                self.runs[run[:most]], self.runs[run] = (start, used), (most, used)
        for run, (start, _) in list(self.runs.items()):
            if tokens[: len(run)] == run and len(run) <= most:
                self.runs[run] = (start, self.now)
        return most

    def held(self) -> int:
        return sum(len(run) - start for run, (start, _) in self.runs.items())


_A, _B, _C, _D = [0] * 4, [1] * 4, [2] * 4, [2, 1, 0, 0]


# A is used once more, so that B goes when D comes.
@few
@example([(prompt, []) for prompt in (_A, _B, _A, _C, _D, _A)], 1, 12)
@given(any_load(), st.integers(1, 4), st.integers(8, 60))
def test_sglang_tree(load: Load, size: int, tokens: int) -> None:
    model, plain = SglangTree(tokens, size), ListedRuns(tokens, size)
    for prompt, answer in load:
        expected = plain.serve(call(prompt, answer))
        served = Served(0, refused=True) if expected is None else Served(expected)
        assert model.serve(call(prompt, answer)) == served
        assert model.num_cached == plain.held() <= model.num_tokens


@few
@given(any_load(), st.integers(1, 4), st.integers(0, 9), st.sampled_from([None, 2.0, 5.0]))
def test_automatic_caching_costs_what_measure_says(
    load: Load, increment: int, least: int, ttl: float | None
) -> None:
    """`cost_of_calls` compares each prompt with every earlier one."""
    calls = [call(prompt, answer, float(i)) for i, (prompt, answer) in enumerate(load)]
    model = AutomaticCache("x", HostedRules(least, increment, ttl))
    served = [model.serve(made) for made in calls]
    prices = PriceTable(min_tokens=least, increment=increment, ttl_s=ttl)
    times = [int(made.time_s * 1e9) for made in calls]
    costs = cost_of_calls([made.prompt for made in calls], times, [0] * len(calls), prices)
    assert [s.cached for s in served] == [cost.cached for cost in costs]


@few
@given(st.data(), st.integers(0, 6), st.integers(1, 4), st.sampled_from([None, 2.0]))
def test_breakpoints(data: st.DataObject, least: int, look_back: int, ttl: float | None) -> None:
    model = BreakpointCache("x", HostedRules(least, 1, ttl, True, look_back))
    written: dict[tuple[int, ...], float] = {}
    for now, (prompt, _) in enumerate(data.draw(any_load(10))):
        ends = sorted(data.draw(st.sets(st.integers(1, len(prompt)), min_size=1)))
        marks = sorted(data.draw(st.sets(st.sampled_from(ends), max_size=4)))
        long_enough = [mark for mark in marks if mark >= least]
        cached = 0
        for mark in long_enough:
            for end in [end for end in ends if end <= mark][-look_back:]:
                if now - written.get(tuple(prompt[:end]), -9.0) <= (9e9 if ttl is None else ttl) and (
                    tuple(prompt[:end]) in written
                ):
                    cached = max(cached, end)
        for end in [*long_enough, *([cached] if cached else [])]:
            written[tuple(prompt[:end])] = float(now)
        expected = Served(cached, max([cached, *long_enough]) - cached)
        assert model.serve(call(prompt, (), float(now), ends=tuple(ends), marks=tuple(marks))) == expected


@pytest.mark.parametrize("model", [OwnTree(100, 4), VllmPages(100, 4), SglangTree(400, 4), SglangTree(400)])
def test_a_conversation_is_cached_up_to_its_newest_turn(model: CacheModel) -> None:
    first, answer = list(range(30)), list(range(100, 110))
    assert model.serve(call(first, answer)) == Served(0)
    exact = {"deeproot": 39, "vLLM": 36, "SGLang": 39 if getattr(model, "page_size", 0) == 1 else 36}[
        model.name
    ]
    assert model.serve(call([*first, *answer, 7, 7])) == Served(exact)


def test_too_long_a_prompt_is_refused_and_changes_nothing() -> None:
    for model in (OwnTree(4, 4), VllmPages(4, 4), SglangTree(16, 4)):
        model.serve(call(range(12)))
        assert model.serve(call([*range(12), *range(12)])) == Served(0, refused=True)
        assert model.serve(call([*range(12), 5])) == Served(12)


@pytest.mark.parametrize(
    ("field", "made"),
    [
        ("prompt", lambda: call([])),
        ("ends", lambda: call([1, 2], ends=(2, 1))),
        ("ends", lambda: call([1, 2], ends=(3,))),
        ("marks", lambda: call([1, 2], ends=(2,), marks=(1,))),
        ("ttl_s", lambda: HostedRules(ttl_s=0)),
        ("increment", lambda: HostedRules(increment=0)),
        ("num_pages", lambda: VllmPages(0)),
        ("num_tokens", lambda: SglangTree(0)),
        (
            "5 marks",
            lambda: BreakpointCache("x", HostedRules()).serve(
                call([1] * 9, ends=(1, 2, 3, 4, 5), marks=(1, 2, 3, 4, 5))
            ),
        ),
    ],
)
def test_bad_input_is_named(field: str, made: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=field):
        made()
