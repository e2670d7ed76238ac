"""What one tenant is told does not depend on what another does with its sessions."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.rig import make_scheduler

from deeproot.scheduler.answering import answer
from deeproot.scheduler.invariants import check_idle
from deeproot.scheduler.questions import ForkQuestion, LeaveQuestion
from deeproot.scheduler.scheduler import Scheduler

from .test_isolation import send

names = st.sampled_from([b"s", b"t", b"u"])
moves = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "fork", "rewind", "close"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=30),
        st.booleans(),
        names,
        names,
    ),
    max_size=10,
)


def act(
    scheduler: Scheduler, tenant: bytes, made: list[tuple[str, list[int], bool, bytes, bytes]]
) -> list[Any]:
    """What the tenant is told of each move."""
    told: list[Any] = []
    for kind, ids, leased, session, other in made:
        if kind == "send":
            told += send(scheduler, tenant, [(ids, leased)], session=session)
        elif kind == "fork":
            told.append(answer(scheduler, ForkQuestion(tenant, session, other)))
        else:
            keep = len(ids) if kind == "rewind" else 0
            told.append(answer(scheduler, LeaveQuestion(tenant, session, keep)))
    check_idle(scheduler)
    return told


@given(a=moves, b=moves)
@settings(max_examples=60, deadline=None)
def test_sessions_that_a_forks_rewinds_and_closes_change_nothing_for_b(a: list[Any], b: list[Any]) -> None:
    """Though they bear the same names and hold the same tokens."""
    alone = make_scheduler(page_size=4, num_pages=512)
    beside = make_scheduler(page_size=4, num_pages=512)
    act(beside, b"a", a[: len(a) // 2])
    told = act(beside, b"b", b[: len(b) // 2])
    act(beside, b"a", a[len(a) // 2 :])
    told += act(beside, b"b", b[len(b) // 2 :])
    assert told == act(alone, b"b", b[: len(b) // 2]) + act(alone, b"b", b[len(b) // 2 :])
