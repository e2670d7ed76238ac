"""Compactions that free nothing: the breaker opens, says so, and closes again."""

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.budget import BudgetError
from deeproot.runtime.context.compaction.breaker import rearm
from deeproot.runtime.context.compaction.compactor import Status
from deeproot.runtime.context.event_log import EventLog

from .conftest import MakeCompactor, room
from .runs import chatter, shell, start


def test_fixed_overhead_over_the_mark_is_an_error_at_once(
    make_compactor: MakeCompactor, log: EventLog
) -> None:
    record.policy(log, "rules " * 4000)
    record.user(log, "Go.")
    size = len(log)
    with pytest.raises(BudgetError, match="reach the high water mark"):
        room(make_compactor(), log)
    assert len(log) == size  # nothing was tried


def test_the_breaker_opens_says_so_and_closes_again(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    for i in range(19):
        record.user(log, f"Remember {i}: {chatter(i)}")  # a user's words are never summarised
    compactor = make_compactor()
    outcomes = [room(compactor, log) for _ in range(5)]
    assert [o.status for o in outcomes] == [Status.USELESS] * 3 + [Status.OPEN] * 2
    assert "the last 3 compactions freed less than 10% each" in outcomes[-1].message
    assert not any(o.swapped for o in outcomes)
    # A restart does not close it.
    assert room(make_compactor(), log).status is Status.OPEN
    # It closes when there is something to free: first half open, then, after a useful one, for good.
    for i in range(20):
        shell(log, i, f"ls {i}", chatter(i))
    assert room(compactor, log).status is Status.COMPACTED
    tried = []
    for i in range(20, 60):
        tried.append(room(compactor, log).status)
        shell(log, i, f"ls {i}", chatter(i))
    assert Status.COMPACTED in tried


def test_the_breaker_is_closed_by_hand(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    for i in range(19):
        record.user(log, f"Remember {i}: {chatter(i)}")
    compactor = make_compactor()
    for _ in range(3):
        room(compactor, log)
    assert room(compactor, log).status is Status.OPEN
    rearm(log)
    assert room(compactor, log).status is Status.USELESS
