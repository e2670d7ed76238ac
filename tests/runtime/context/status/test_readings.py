"""What the status says of a run: counts, lists, failures, time."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.status import todo
from deeproot.runtime.context.status.environment import Environment, spell_seconds
from deeproot.runtime.context.status.failures import describe_failure
from deeproot.runtime.context.status.history import RunHistory
from deeproot.runtime.context.status.limits import CallLimit, tally
from deeproot.runtime.context.status.reading import Reading, spell
from deeproot.runtime.context.status.techniques import NO_TECHNIQUES, Techniques
from deeproot.runtime.context.status.time_sense import TimeSense
from deeproot.runtime.context.status.todo import Todo, TodoError

from ..agent_turns import begin, call

SECOND = 10**9


def history(log: EventLog) -> RunHistory:
    made = RunHistory(log)
    made.read()
    return made


def sensed(log: EventLog, sense: TimeSense) -> list[str]:
    return [str(line) for line in sense.readings(history(log).calls, 0, None)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=300), st.text(max_size=300), st.text(max_size=30)), max_size=5))
def test_a_reading_is_one_line(lines: list[tuple[str, str, str]]) -> None:
    spelled = spell(Reading(*line) for line in lines)
    assert len(spelled.split("\n")) == max(1, len(lines))
    assert len(spelled.splitlines()) == len([line for line in spelled.split("\n") if line or len(lines) > 1])


def test_limits_count_each_value_by_itself(log: EventLog) -> None:
    begin(log)
    for merchant in ("Xfinity", "Verizon", "Xfinity", "Xfinity"):
        call(log, "phone_call", {"to": merchant}, "busy")
    call(log, "bash", {"to": "Xfinity"}, "ok")
    limit = CallLimit("phone_call", 3, "to")
    assert [str(line) for line in limit.readings(history(log).calls)] == [
        "phone_call to Xfinity: 3 calls (3/3) -> maximum reached: do not call phone_call to Xfinity again",
        "phone_call to Verizon: 1 calls (1/3)",
    ]
    assert [str(line) for line in CallLimit("phone_call", 9).readings(history(log).calls)] == [
        "phone_call: 4 calls (4/9)"
    ]
    assert [str(line) for line in tally(history(log).counts)] == ["calls: phone_call 4, bash 1"]
    with pytest.raises(ValueError, match="at_most is -1"):
        CallLimit("phone_call", -1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=20), st.integers(0, 5))
def test_the_counter_is_right_whatever_the_order(names: list[str], at_most: int) -> None:
    log = EventLog.memory(clock=lambda: 0)
    for name in names:
        call(log, name, {}, "ok")
    for name in "abc":
        lines = CallLimit(name, at_most).readings(history(log).calls)
        if name not in names:
            assert lines == []
            continue
        (line,) = lines
        assert f"({names.count(name)}/{at_most})" in line.value
        assert bool(line.rule) == (names.count(name) >= at_most)


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (["HTTP 410 Gone"], "wall: 410 Gone, tried 1 time -> real: do not try this again, take another way"),
        (["503", "503"], "wall: 503, tried 2 times -> may pass: wait, then try again"),
        (["timed out"] * 3, "wall: timed out, tried 3 times -> enough tries: take another way, or say that it is down"),
        (["odd"] * 2, "wall: the same call failed, tried 2 times -> change something before you try again"),
    ],
)  # fmt: skip
def test_real_and_passing_walls(log: EventLog, outputs: list[str], says: str) -> None:
    for output in outputs:
        call(log, "get", {"url": "u"}, output, exit_code=1)
    assert sensed(log, TimeSense()) == [says]
    call(log, "get", {"url": "u"}, "fine")
    assert sensed(log, TimeSense()) == []


def test_one_odd_failure_says_nothing(log: EventLog) -> None:
    call(log, "get", {"url": "u"}, "odd", exit_code=1)
    call(log, "get", {"url": "v"}, "odd", exit_code=1)
    assert sensed(log, TimeSense()) == []


def test_a_false_wall_is_no_reason_to_stop(log: EventLog) -> None:
    sense = TimeSense(searches=frozenset(["grep"]))
    call(log, "grep", {"for": "pay"}, "")
    (line,) = sensed(log, sense)
    assert line.startswith(
        "nothing found: 1 way tried with grep -> try other words or places, 3 ways at least"
    )
    call(log, "grep", {"for": "pay"}, "No matches found")
    assert sensed(log, sense) == [line]
    for word in ("payment", "refund"):
        call(log, "grep", {"for": word}, "0 results")
    assert sensed(log, sense)[0].startswith(
        "nothing found: 3 ways tried with grep -> that was tried in enough"
    )
    call(log, "grep", {"for": "x"}, "src/a.py:3: x")
    assert sensed(log, sense) == []


def test_vigilance_knows_what_is_usual(log: EventLog) -> None:
    for i in range(3):
        call(log, "get", {"n": i}, "body", seconds=0.5)
    call(log, "get", {"n": 3}, "body", seconds=5.0)
    assert sensed(log, TimeSense()) == [
        "slow: get took 5.0 s, usually 500 ms -> find out why before you call it again"
    ]
    call(log, "get", {"n": 4}, "", seconds=0.001)
    assert sensed(log, TimeSense()) == [
        "suspiciously quick: get took 1 ms, usually 500 ms, and gave nothing -> check that it did anything"
    ]
    call(log, "get", {"n": 5}, "body", seconds=0.6)
    assert sensed(log, TimeSense()) == []
    call(log, "put", {}, "body", seconds=9)
    assert sensed(log, TimeSense()) == []
    assert sensed(log, TimeSense(expected_s={"put": 1})) != []


@pytest.mark.parametrize(
    ("used", "rule"),
    [
        (0, "there is time"),
        (100, "finish what is open"),
        (150, "deliver the best"),
        (999, "deliver what you have"),
    ],
)
def test_urgency_both_ways(log: EventLog, used: int, rule: str) -> None:
    begin(log)
    run = history(log)
    assert run.first_ns is not None
    (line,) = TimeSense(180).readings(run.calls, run.first_ns + used * SECOND, run.first_ns)
    assert line.rule.startswith(rule)
    assert line.value.endswith("of 3 min left")


def test_durations_are_from_the_log_where_the_host_says_none(log: EventLog) -> None:
    call(log, "get", {}, "body")
    call(log, "get", {}, "body", seconds=4)
    assert [made.seconds for made in history(log).calls] == [1.0, 4.0]


def test_environment_and_words_for_durations() -> None:
    lines = Environment("/repo", "Linux x86_64").readings(1_700_000_000 * SECOND, 1_699_999_940 * SECOND)
    assert [str(line) for line in lines] == [
        "time: 2023-11-14T22:13:20Z",
        "since the user spoke: 60 s",
        "cwd: /repo",
        "system: Linux x86_64",
    ]
    here = Environment.here("/repo", "/bin/bash")
    assert here.shell == "bash"
    assert here.python.startswith("3.")
    assert [spell_seconds(s) for s in (0, 0.5, 3, 59.6, 300, 9000)] == [
        "0 s", "500 ms", "3.0 s", "60 s", "5 min", "2.5 h",
    ]  # fmt: skip


def said(log: EventLog, name: str, arguments: object) -> int:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call_id = f"c{len(log)}"
    record.assistant(log, "", tool_calls=[{"id": call_id, "type": "function", "function": function}])
    return todo.answer(log, call_id, function, history(log).todo)


def test_the_list_is_kept_by_the_model(log: EventLog) -> None:
    begin(log)
    said(log, todo.REWRITE, {"items": ["find the port", "fix it"]})
    said(log, todo.UPDATE, {"number": 1, "status": "done"})
    kept = history(log).todo
    assert kept == (Todo("find the port", "done"), Todo("fix it"))
    assert [str(line) for line in todo.readings(kept)] == [
        "todo: 1 of 2 done",
        "todo 1: done, find the port",
        "todo 2: pending, fix it",
    ]
    result = log.event(said(log, todo.REWRITE, {"items": ["find the port", "test it"]}))
    assert log.text(result) == "The list is now: 1 done, 2 pending."
    assert history(log).todo[0].status == "done"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        (todo.UPDATE, {"number": 3, "status": "done"}, "number is 3; give 1 to 1"),
        (todo.UPDATE, {"number": True, "status": "done"}, "number is True"),
        (todo.UPDATE, {"number": 1, "status": "finished"}, "status is 'finished'; give one of pending"),
        (todo.REWRITE, {"items": "all"}, "items is no list of texts"),
        (todo.REWRITE, {"items": ["x"] * 51}, "items has 51 entries; give at most 50"),
        (todo.REWRITE, "nonsense", "items is no list of texts"),
        ("other", {}, "other is no tool of the list"),
    ],
)
def test_a_wrong_call_of_the_list_says_what_to_give(
    log: EventLog, name: str, arguments: object, says: str
) -> None:
    said(log, todo.REWRITE, {"items": ["a"]})
    event = log.event(said(log, name, arguments))
    assert log.text(event).startswith(f"error: {says}")
    assert event.exit_code == 1
    assert history(log).todo == (Todo("a"),)
    with pytest.raises(TodoError, match="there is no list yet"):
        todo.changed((), todo.UPDATE, {"number": 1, "status": "done"})


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([todo.REWRITE, todo.UPDATE, "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["items", "number", "status", "z"]), inner, max_size=3),
    max_leaves=6,
)), max_size=5))  # fmt: skip
def test_any_call_of_the_list_is_done_or_refused(calls: list[tuple[str, object]]) -> None:
    kept: tuple[Todo, ...] = (Todo("a"),)
    for name, arguments in calls:
        try:
            kept = todo.changed(kept, name, arguments)
        except TodoError as error:
            assert str(error)  # noqa: PT017
        assert all(item.status in todo.STATES and item.text for item in kept)


def test_four_layers_of_an_error() -> None:
    detailed = Techniques(detailed_errors=True)

    def read(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    try:
        read("/repo/src/a.py")
    except FileNotFoundError as error:
        told = describe_failure(error, arguments={"path": "/repo/src/a.py"}, techniques=detailed)
        plain = describe_failure(error, arguments={"path": "/repo/src/a.py"}, techniques=NO_TECHNIQUES)
        own = describe_failure(
            error, arguments={}, techniques=detailed, suggestions=["did you mean src/b.py?"]
        )
    kind, arguments, stack, suggestion = told.split("\n")
    assert kind == plain == "FileNotFoundError: [Errno 2] No such file or directory: '/repo/src/a.py'"
    assert arguments == 'arguments: {"path": "/repo/src/a.py"}'
    assert stack.startswith("stack: test_readings.py:")
    assert stack.endswith(" read")
    assert suggestion == "suggestion: list the folder above to see what the path really is"
    assert own.endswith("suggestion: did you mean src/b.py?")
    assert describe_failure("exit 3", arguments="x" * 700, techniques=detailed).split("\n") == [
        "error: exit 3",
        f"arguments: {'x' * 600} [100 more characters]",
    ]
