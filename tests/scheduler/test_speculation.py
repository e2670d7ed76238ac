"""Guessing ahead must change nothing but the number of steps."""

import numpy as np
import pytest
from echo_model import EchoModel, make_pool, repeating_token
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from tests.scheduler.any_load import AnyLoad, Pool, pools
from tests.scheduler.rig import alone, request, run, tokens

from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig, SpeculationConfig
from deeproot.scheduler.prompt_lookup import PromptLookup
from deeproot.scheduler.scheduler import Scheduler
from deeproot.scheduler.table import RunningTable


def make_scheduler(
    speculation: SpeculationConfig | None,
    page_size: int = 4,
    num_pages: int = 64,
    seqs: int = 8,
    budget: int = 64,
    max_len: int = 200,
    overlap: bool = False,
) -> Scheduler:
    pool = make_pool(page_size, num_pages)
    config = SchedulerConfig(
        seqs, budget, min(max_len, num_pages * page_size), overlap, speculation, reserved_output=1
    )
    return Scheduler(config, RadixCache(page_size), pool, EchoModel(pool, repeating_token))


class AnyLoadGuessing(AnyLoad):
    """The same load, over a model that repeats itself, with guesses that are right, wrong, and right in part."""

    next_token = staticmethod(repeating_token)

    @initialize(
        pool=pools,
        seqs=st.integers(1, 6),
        budget=st.integers(6, 40),
        drafts=st.integers(1, 9),
        lengths=st.sampled_from([(1, 1), (1, 3), (2, 2)]),
        overlap=st.booleans(),
    )
    def start(
        self,
        pool: Pool,
        seqs: int,
        budget: int,
        drafts: int,
        lengths: tuple[int, int],
        overlap: bool,
    ) -> None:
        super().start(pool, seqs, budget, overlap, {})
        guessing = SpeculationConfig(drafts, prompt_lookup_min=lengths[0], prompt_lookup_max=lengths[1])
        self.scheduler = make_scheduler(
            guessing, pool.page_size, pool.num_pages, seqs, budget, pool.max_len, overlap=overlap
        )


TestAnyLoadGuessing = AnyLoadGuessing.TestCase
TestAnyLoadGuessing.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_repetitions_take_fewer_steps_for_the_same_tokens() -> None:
    guessing, plain = make_scheduler(SpeculationConfig(6, 2, 2)), make_scheduler(None)
    prompt = [5, 38, 19, 36]
    for scheduler in (guessing, plain):
        scheduler.add(request("one", prompt, 120))
    said = tokens(run(guessing)["one"])
    assert said == tokens(run(plain)["one"]) == alone(prompt, 120, 200, (), repeating_token)[0]
    assert plain.counters.steps == 120
    assert guessing.counters.steps < 80
    # Each step gives the token after what was accepted.
    assert guessing.counters.steps + guessing.counters.accepted == 120
    assert guessing.counters.computed == len(prompt) - 1 + guessing.counters.steps + guessing.counters.drafted


def test_what_was_guessed_wrong_does_not_reach_the_cache() -> None:
    """A second turn takes the first from the cache; a wrong token's K and V among it would change what is said."""
    scheduler = make_scheduler(SpeculationConfig(9, 1, 1), page_size=16, num_pages=16)
    ids = [1, 2, 1, 2, 1, 2, 1]
    for turn in range(4):
        rid = str(turn)
        scheduler.add(request(rid, ids, 17))
        outputs = run(scheduler)[rid]
        assert tokens(outputs) == alone(ids, 17, 200, (), repeating_token)[0]
        assert outputs[-1].usage.cached == (len(ids) - 4 if turn else 0)
        ids = ids + tokens(outputs) + [1, 2, 1]
    assert 0 < scheduler.counters.accepted < scheduler.counters.drafted


def test_a_request_whose_guesses_are_wrong_pauses() -> None:
    """Random tokens out of few: matches everywhere, and what follows them tells nothing."""
    scheduler = make_scheduler(SpeculationConfig(4, 1, 1))
    few = np.random.default_rng(0).integers(0, 4, 500).tolist()
    scheduler.runner = EchoModel(scheduler.pool, lambda ids: few[len(ids)])
    scheduler.add(request("noise", few[:9], 180))
    assert tokens(run(scheduler)["noise"]) == few[9:189]
    assert 0 < scheduler.counters.drafted < 180


def test_no_guesses_beyond_batch_size_budget_or_request() -> None:
    for config, speculate in (
        (SpeculationConfig(4, 1, 1, disable_by_batch_size=1), True),
        (SpeculationConfig(4, 1, 1), False),
    ):
        scheduler = make_scheduler(config)
        scheduler.add(request("one", [1, 2, 1, 2], 40, speculate=speculate))
        run(scheduler)
        assert scheduler.counters.drafted == 0


def brute_force(ids: list[int], config: SpeculationConfig, room: int) -> list[int]:
    """The longest match's latest place, by looking everywhere; what followed it, over and over."""
    for length in range(config.prompt_lookup_max, config.prompt_lookup_min - 1, -1):
        for end in range(len(ids) - 1, length - 1, -1):
            if len(ids) > length and ids[end - length : end] == ids[-length:]:
                return [ids[end + i % (len(ids) - end)] for i in range(room)]
    return []


@settings(max_examples=200, deadline=None)
@given(
    sequences=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=60), min_size=1, max_size=3),
    cut=st.integers(1, 60),
    pieces=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    lengths=st.sampled_from([(1, 1), (1, 3), (2, 4)]),
    room=st.integers(1, 6),
)
def test_drafts_are_what_a_search_of_everything_finds(
    sequences: list[list[int]], cut: int, pieces: list[int], lengths: tuple[int, int], room: int
) -> None:
    """Whatever the sizes of the pieces in which tokens come. The table has room for every match of so few tokens."""
    config = SpeculationConfig(room, prompt_lookup_min=lengths[0], prompt_lookup_max=lengths[1])
    table = RunningTable(SchedulerConfig(4, 4096, 4096), 4)
    lookup = PromptLookup(config, table)
    sizes = [min(cut, len(ids)) for ids in sequences]
    rows = np.arange(len(sequences))
    for row, (ids, size) in enumerate(zip(sequences, sizes, strict=True)):
        lookup.start(row)
        table.tokens[row, :size] = ids[:size]
    for piece in pieces:
        table.num_tokens[rows] = sizes
        counts = lookup.draft(rows, np.full(len(rows), room))
        for row, (ids, size) in enumerate(zip(sequences, sizes, strict=True)):
            drafts = table.tokens[row, size : size + counts[row]].tolist()
            assert drafts == brute_force(ids[:size], config, room)
            end = min(size + piece, len(ids))
            table.tokens[row, size:end] = ids[size:end]
            sizes[row] = end


@pytest.mark.parametrize(
    "field", ["num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "disable_by_batch_size"]
)
def test_limits_are_checked(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SpeculationConfig(**{"num_speculative_tokens": 3, field: 0})
