"""What stands at a prompt's beginning: fixed overhead, tools, conditions, and a zone over its share."""

import json

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.budget import BudgetError
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.three_zones import ThreeZones

from .layouts import TOOLS, Assemble, start, turn


def test_fixed_overhead_over_the_mark_is_an_error_at_once(assemble: Assemble, log: EventLog) -> None:
    record.policy(log, "word " * 900)
    record.user(log, "x")
    with pytest.raises(
        BudgetError, match=r"reach the high water mark \(800 of 1000\): no compaction can help"
    ):
        assemble(ThreeZones(1000), log)


def test_tools_are_sorted_once_and_frozen(assemble: Assemble, log: EventLog) -> None:
    start(log)
    turn(log, 0)
    before = assemble(ThreeZones(9000), log)
    shuffled = [
        {"function": {"parameters": {"a": 2, "b": 1}, "name": t["function"]["name"]}, "type": "function"}
        for t in reversed(TOOLS)
    ]
    record.tools(log, shuffled)
    same = assemble(ThreeZones(9000), log)
    assert same.token_ids.tobytes() == before.token_ids.tobytes()
    assert same.report.notes == ()
    record.tools(log, [*TOOLS, {"type": "function", "function": {"name": "another"}}])
    changed = assemble(ThreeZones(9000), log)
    assert [t["function"]["name"] for t in changed.tools] == ["another", *[f"tool_{i}" for i in range(5)]]
    assert "tools changed at e" in changed.report.notes[0]


def test_tools_that_have_no_canonical_spelling_still_work(assemble: Assemble, log: EventLog) -> None:
    record.tools(log, [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**63 - 1}}}])
    record.user(log, "go")
    context = assemble(AppendOnly(), log)
    assert context.tools[0]["function"]["parameters"]["maximum"] == 2**63 - 1
    with pytest.raises(EventLogError, match=r"tools\[0\]\.function\.name is missing"):
        record.tools(log, [{"name": "f"}])
    log.append(EventKind.INSTRUCTION, "{}", data={"part": "tools"})
    with pytest.raises(ValueError, match="event 3: tools are no JSON list of objects"):
        assemble(AppendOnly(), log)


def test_the_report_is_json_and_names_zones_over_their_share(assemble: Assemble, log: EventLog) -> None:
    start(log)
    for i in range(12):
        turn(log, i)
    report = assemble(ThreeZones(5000), log).report
    told = json.loads(json.dumps(report.to_dict()))
    assert told["tokens"] == report.tokens == sum(told["zone_tokens"].values())
    assert len(told["dropped"]) == len(report.dropped) > 0
    assert "root has" not in str(report)
    small = assemble(ThreeZones(3000), log).report
    assert f"root has {small.zone_tokens[Zone.ROOT]} tokens, over its share of 600" in small.notes


def test_conditions_multiply_the_roots(assemble: Assemble, log: EventLog) -> None:
    record.policy(log, "On Linux, with network, as root.", conditions=["linux", "network", "root"])
    record.policy(log, "In CI.", conditions=["root"])
    record.user(log, "go")
    report = assemble(ThreeZones(4000), log).report
    assert report.variants.keys == 8
    assert "3 condition(s) before the cache boundary (linux, network, root): 8 variants" in str(report)
