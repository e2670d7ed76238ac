"""How many tokens of prompts go beside requests that write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.pace import Pace


def test_without_a_target_all_of_the_budget() -> None:
    pace = Pace(None)
    pace.note(4, 1000, 10.0)
    assert pace.most(1024) == 1024


def test_before_anything_is_known_a_modest_chunk() -> None:
    assert Pace(0.2).most(1024) == 256
    assert Pace(0.2).most(100) == 100


def test_what_is_left_of_the_target_goes_to_prompts() -> None:
    """A step that writes takes 50 ms, a token of prompts 1 ms: of 180 ms 130 are left."""
    pace = Pace(0.2)
    pace.note(4, 0, 0.05)
    pace.note(0, 500, 0.5)
    assert pace.most(1024) == 130
    for _ in range(9):  # further into the prompt, tokens take twice as long
        pace.note(4, 100, 0.25)
    assert pace.most(1024) == pytest.approx(65, abs=1)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 64), st.integers(0, 2000), st.floats(0, 100)).filter(lambda s: s[0] + s[1]),
        max_size=20,
    ),
    target=st.floats(1e-9, 1e3),
    budget=st.integers(1, 4096),
)
def test_some_progress_whatever_the_steps_took(
    steps: list[tuple[int, int, float]], target: float, budget: int
) -> None:
    pace = Pace(target)
    for num_writing, num_prompt, seconds in steps:
        pace.note(num_writing, num_prompt, seconds)
    assert min(budget, 16) <= pace.most(budget) <= budget


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "sjf"),
        ("patience", -1.0),
        ("patience", float("nan")),
        ("reserved_output", 0),
        ("max_itl_s", 0.0),
    ],
)
def test_values_that_cannot_work_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**{field: value})
