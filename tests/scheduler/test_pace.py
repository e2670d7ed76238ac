"""How many tokens of prompts go beside requests that write."""

from collections.abc import Generator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.bench.simulator.clock import StepCost
from deeproot.bench.simulator.load import Call, made_tokens, once
from deeproot.bench.simulator.simulate import Simulation
from deeproot.engine.batch import Int32Array, several_sequences
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.flight import Step
from deeproot.scheduler.pace import Depth, Pace

SMALL_MODEL_ON_TWO_CORES = StepCost(fixed_s=0.012, token_s=3.2e-4, read_s=1.4e-7)
"""A model of 135M parameters, about: a token among 2,300 others costs twice what one alone does."""


def test_without_a_target_all_of_the_budget() -> None:
    pace = Pace(None)
    pace.note(4, 1000, 5e5, 10.0)
    assert pace.most(1024) == 1024


def test_before_anything_is_known_a_modest_chunk() -> None:
    assert Pace(0.2).most(1024) == 64
    assert Pace(0.2).most(50) == 50


def test_what_is_left_of_the_target_goes_to_prompts() -> None:
    """A step that writes takes 50 ms, a token of prompts 1 ms: of 180 ms 130 are left."""
    pace = Pace(0.2)
    pace.note(4, 0, 0, 0.05)
    pace.note(0, 500, 0, 0.5)
    assert 80 < pace.most(1024) < 90, "of the first step it is not known how far off it may be"
    for _ in range(30):
        pace.note(0, 500, 0, 0.5)
    assert pace.most(1024) == pytest.approx(130, abs=1)
    for _ in range(30):  # the machine is busy: all takes twice as long
        pace.note(4, 100, 0, 0.25)
    assert pace.most(1024) == pytest.approx(65, abs=1)


def test_steps_that_differ_are_planned_with_caution() -> None:
    pace = Pace(0.2)
    for i in range(60):
        pace.note(0, 100, 0, 0.1 if i % 2 else 0.15)
    assert 0.18 / 0.0020 < pace.most(1024) < 0.18 / 0.0013, "in place of 0.18 / 0.00125"


def test_a_held_up_step_without_prompts_does_not_make_a_prompt_slow() -> None:
    """The time of writing alone, once too high, comes down with the steps beside the prompt."""
    pace = Pace(0.2)
    pace.note(1, 0, 0, 3.0)
    for _ in range(40):
        tokens = pace.most(1024)
        pace.note(1, tokens, 0, 0.01 + 0.0005 * tokens)
    assert pace.most(1024) > 150


@given(share=st.floats(1e-6, 1e-2), token_s=st.floats(1e-6, 1e-2), seed=st.integers(0, 2**32))
def test_depth_is_learned_from_different_contexts(share: float, token_s: float, seed: int) -> None:
    depth = Depth()
    for context in np.random.default_rng(seed).integers(1, 8000, 20).tolist():
        depth.note(context, token_s * (1 + share * context))
    # What a token costs without any context is taken for at least a fiftieth of the mean.
    assert depth.share == pytest.approx(share, rel=0.01) or share * 8000 > 40
    known = depth.share
    for _ in range(5):  # and kept when all contexts are the same
        depth.note(100, token_s)
    assert depth.share >= 0
    fresh = Depth()
    for _ in range(20):
        fresh.note(100, token_s)
    assert fresh.share == 0 <= known


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 64), st.integers(0, 2000), st.floats(0, 1e7), st.floats(0, 100)).filter(
            lambda s: s[0] + s[1]
        ),
        max_size=20,
    ),
    target=st.floats(1e-9, 1e3),
    budget=st.integers(1, 4096),
    context=st.integers(0, 10**6),
)
def test_some_progress_whatever_the_steps_took(
    steps: list[tuple[int, int, float, float]], target: float, budget: int, context: int
) -> None:
    pace = Pace(target)
    for num_writing, num_prompt, pairs, seconds in steps:
        pace.note(num_writing, num_prompt, pairs, seconds)
    assert min(budget, 16) <= pace.most(budget, context) <= budget


@pytest.mark.parametrize("before", [(), (150,), (400,) * 12], ids=["first", "short", "many short"])
def test_a_stream_keeps_its_pace_beside_long_prompts(before: tuple[int, ...]) -> None:
    """Behind short prompts, whose tokens cost little, a long one; then a few tokens more at its end, where they cost most."""
    rng = np.random.default_rng(0)
    config = SchedulerConfig(8, 1024, 8000, max_itl_s=0.2)
    simulation = Simulation(config, 400, cost=SMALL_MODEL_ON_TWO_CORES)
    short = [(0.5 + 0.4 * i, once(_call("short", made_tokens(rng, n), 1))) for i, n in enumerate(before)]
    stream = once(_call("stream", made_tokens(rng, 30), 900))
    simulation.run([[(0.0, stream)], short, [(8.0, _conversation(rng))]], len(before) + 4)
    gaps = next(record.gaps for record in simulation.records if record.kind == "stream")
    long = [record for record in simulation.records if record.kind == "long"]
    assert [record.num_prompt for record in long] == [6000, 6501, 7002]
    assert [record.num_computed for record in long] == [6000, 501, 501], (
        "what is cached is not computed again"
    )
    stream_ended = next(record.ended for record in simulation.records if record.kind == "stream")
    assert stream_ended > long[-1].first_token
    assert max(gaps) < 0.21
    # And it is not caution that keeps it: with nobody else it takes 4.5 s.
    assert long[0].first_token - long[0].came < 6.5


def _call(kind: str, prompt: Int32Array, num_answer: int, time_s: float = 0.0) -> Call:
    return Call(kind, time_s, prompt, np.zeros(num_answer, dtype=np.int32))


def _conversation(rng: np.random.Generator) -> Generator[Call, float, None]:
    prompt, now = made_tokens(rng, 6000), 8.0
    for _ in range(3):
        ended = yield _call("long", prompt, 1, now)
        prompt = np.concatenate([prompt, np.zeros(1, dtype=np.int32), made_tokens(rng, 500)])
        now = ended + 1.0


def test_step_notes_tokens_and_what_they_attend_to() -> None:
    """Of a batch of a writing row, and two chunks of prompts at different depths."""
    noted: list[tuple[int, int, float, float]] = []

    class Noting(Pace):
        def note(self, num_writing: int, num_prompt: int, pairs: float, seconds: float) -> None:
            noted.append((num_writing, num_prompt, pairs, seconds))

    ids = np.arange(400, dtype=np.int32)
    pages = np.arange(7, dtype=np.int32)
    batch = several_sequences([(ids[:50], 49, pages), (ids[:100], 0, pages), (ids, 350, pages)], 64)
    rows, extend = np.arange(3), np.array([1, 100, 50])
    Noting(0.2).landed(Step(rows, extend, rows, batch), 0.5)
    assert noted == [(1, 150, 100 * 50 + 50 * 375, 0.5)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "sjf"),
        ("eviction", "lfu"),
        ("patience", -1.0),
        ("patience", float("nan")),
        ("reserved_output", 0),
        ("max_itl_s", 0.0),
    ],
)
def test_values_that_cannot_work_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**{field: value})
