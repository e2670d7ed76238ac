"""OpenAI messages, SWE-agent trajectories and JSON lines: in and out again, equal."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.jsonl import export_lines, import_lines
from deeproot.runtime.context.openai_messages import (
    LogImportError,
    export_messages,
    export_tools,
    import_messages,
)
from deeproot.runtime.context.swe_agent import export_trajectory, import_trajectory

HERE = Path(__file__).parent
TRAJECTORIES = [
    HERE / "data" / "sweagent_marshmallow_1867.traj.json",
    HERE / "fixtures" / "sweagent_pydicom_1458.traj.json",
]
CONVERSATIONS = [
    json.loads(line)["messages"] for line in (HERE / "data" / "tau_airline_6.jsonl").read_text().splitlines()
]

texts = st.text(st.characters(codec=None), max_size=20)
contents = (
    st.none() | texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3)
)
extras = st.dictionaries(
    st.sampled_from(["name", "refusal", "audio", "x"]), texts | st.integers() | st.none(), max_size=2
)
calls = st.lists(
    st.fixed_dictionaries({"id": texts, "type": st.just("function"), "function": st.fixed_dictionaries({"name": texts, "arguments": texts})}),
    max_size=2,
)  # fmt: skip
messages = st.one_of(
    st.tuples(st.sampled_from(["system", "developer", "user"]), contents, extras).map(
        lambda m: {"role": m[0], "content": m[1], **m[2]}
    ),
    st.tuples(contents, calls).map(lambda m: {"role": "assistant", "content": m[0], "tool_calls": m[1]}),
    texts.map(lambda text: {"role": "assistant", "reasoning_content": text}),
    st.tuples(texts, contents).map(lambda m: {"role": "tool", "tool_call_id": m[0], "content": m[1]}),
)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_real_conversations_come_back(conversation: list[dict[str, object]]) -> None:
    with EventLog.memory() as log:
        import_messages(log, conversation)
        assert export_messages(log) == conversation


@settings(max_examples=100)
@example([{"role": "tool", "tool_call_id": "\ud800", "content": None}])
@given(st.lists(messages, max_size=6))
def test_any_messages_come_back(conversation: list[dict[str, object]]) -> None:
    with EventLog.memory() as log:
        events = import_messages(log, conversation)
        assert export_messages(log) == conversation
        assert [e.seq for e in events] == list(range(1, len(conversation) + 1))


def test_tools_and_times_come_along() -> None:
    tools = [{"type": "function", "function": {"name": "b"}}, {"type": "function", "function": {"name": "a"}}]
    with EventLog.memory() as log:
        import_messages(
            log,
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
            tools=tools,
            times_ns=[3, 9],
        )
        assert export_tools(log) == tools
        assert [(e.data.get("part"), e.time_ns) for e in log.read()] == [(None, 3), ("tools", 3), (None, 9)]
        assert export_messages(log)[1] == {"role": "user", "content": "u"}


@pytest.mark.parametrize(
    ("conversation", "says"),
    [
        ([{"role": "user", "content": "a"}, {"role": "boss"}], r"messages\[1\]\.role is 'boss'"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content is int"),
        ([{"role": "user", "content": [{"text": "x"}]}], r"messages\[0\]\.content\[0\]\.type is missing"),
        ([{"role": "tool", "content": "x", "tool_call_id": 4}], r"messages\[0\]\.tool_call_id is int"),
    ],
)
def test_bad_messages_are_named_and_nothing_is_kept(conversation: list[dict[str, object]], says: str) -> None:
    with EventLog.memory() as log:
        with pytest.raises(LogImportError, match=says):
            import_messages(log, conversation)
        assert len(log) == 0


@pytest.mark.parametrize("path", TRAJECTORIES, ids=lambda path: path.name.split(".")[0])
def test_trajectories_come_back(path: Path) -> None:
    document = json.loads(path.read_text())
    with EventLog.memory() as log:
        import_trajectory(log, document, start_ns=0)
        assert export_trajectory(log) == document
        results = [e for e in log.read() if e.kind is EventKind.TOOL_RESULT]
        assert [log.text(e) for e in results] == [step["observation"] for step in document["trajectory"]]


def test_function_calling_steps_keep_their_calls() -> None:
    document = json.loads(TRAJECTORIES[0].read_text())
    with EventLog.memory() as log:
        import_trajectory(log, document, start_ns=0)
        said = [e for e in log.read() if e.kind is EventKind.ASSISTANT]
        seen = [e for e in log.read() if e.kind is EventKind.TOOL_RESULT]
        assert [e.data["message"]["tool_calls"][0]["id"] for e in said] == [e.call_id for e in seen]
        assert {e.data["role"] for e in seen} == {"tool"}
        assert seen[1].time_ns > seen[0].time_ns > 0


def test_a_live_log_becomes_a_trajectory_that_reads_back() -> None:
    with EventLog.memory() as log, EventLog.memory() as copy:
        import_messages(log, CONVERSATIONS[0])
        document = export_trajectory(log)
        import_trajectory(copy, document)
        assert export_trajectory(copy)["trajectory"] == document["trajectory"]
        assert any(step["observation"] for step in document["trajectory"])


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "trajectory is missing"),
        ({"trajectory": [3]}, r"trajectory\[0\] is int"),
        (
            {"trajectory": [{"action": "a", "observation": "b", "response": 1}]},
            r"trajectory\[0\]\.response is int",
        ),
        ({"trajectory": [{"action": "a", "response": "b"}]}, r"trajectory\[0\]\.observation is missing"),
        ({"trajectory": [], "history": [{"role": "x"}]}, r"history\[0\]\.role is 'x'"),
    ],
)
def test_bad_trajectories_are_named(document: dict[str, object], says: str) -> None:
    with EventLog.memory() as log, pytest.raises(LogImportError, match=says):
        import_trajectory(log, document)


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(
            NewEvent,
            kind=st.sampled_from(list(EventKind)),
            payload=st.binary(max_size=30) | st.text(max_size=20),
            data=st.dictionaries(texts, texts | st.integers(), max_size=3),
            call_id=st.none() | texts.filter(lambda t: t.isprintable()),
            exit_code=st.none() | st.integers(-200, 300),
            time_ns=st.integers(0, 2**62),
        ),
        max_size=6,
    )
)
def test_json_lines_are_an_exact_copy(new: list[NewEvent]) -> None:
    with EventLog.memory() as log, EventLog.memory() as copy:
        log.extend(new)
        lines = list(export_lines(log))
        assert all("\n" not in line for line in lines)
        assert import_lines(copy, lines) == len(new)
        assert list(log.read()) == list(copy.read())
        assert [log.payload(e) for e in log.read()] == [copy.payload(e) for e in copy.read()]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: not an object"),
        ('{"kind": "x"}', "line 1: kind is 'x'"),
        ('{"kind": "assistant"}', "line 1: neither text nor base64"),
        ('{"kind": "assistant", "base64": "?"}', "line 1: base64 is broken"),
        ('{"kind": "assistant", "text": "a", "blake3": "00"}', "line 1: blake3 does not fit"),
        ('{"kind": "assistant", "text": "a", "time_ns": "now"}', "line 1: time_ns is str"),
        ('{"kind": "assistant", "text": "a", "exit_code": true}', "line 1: exit_code is bool"),
    ],
)
def test_bad_lines_are_named(line: str, says: str) -> None:
    with EventLog.memory() as log, pytest.raises(LogImportError, match=says):
        import_lines(log, [line])


_ODD = [
    None, 1, "x", [], [1], {"role": 3}, {"role": []}, {"role": "user", "content": {}}, {"role": "assistant", "tool_calls": 5},
    {"role": "assistant", "tool_calls": "x"}, {"role": "assistant", "tool_calls": [1]},
    {"role": "assistant", "tool_calls": [{"id": 3, "function": None}]}, {"role": "tool", "tool_call_id": 5, "content": "x"},
    {"role": "user", "content": [1]}, {"role": "assistant", "content": [{"text": "no type"}]},
]  # fmt: skip


@pytest.mark.parametrize("odd", _ODD, ids=repr)
def test_odd_values_are_refused_by_name_and_leave_the_log_alone(odd: Any) -> None:
    step = {"action": "a", "observation": "b"}
    said = [{"role": "assistant", "content": "x", "tool_calls": odd}]
    for put_in, document in (
        (import_messages, [odd]),
        (import_trajectory, {"trajectory": [odd]}),
        (import_trajectory, {"trajectory": [], "history": [odd]}),
        (import_trajectory, {"trajectory": [{**step, "execution_time": odd}]}),
        (import_trajectory, {"trajectory": [step], "history": said}),
    ):
        with EventLog.memory() as log:
            refused = ""
            try:
                put_in(log, document)
            except LogImportError as error:
                refused = str(error)
            if refused:
                assert re.match(r"(messages|trajectory|history)\[0\]", refused)
                assert list(log.read()) == []
            else:
                export_messages(log)
                export_trajectory(log)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"kind": "assistant", "text": "x", "time_ns": 99999999999999999999999}',
        '{"kind": "assistant", "text": "x", "seq": ' + "9" * 5_000 + "}",
    ],
    ids=["deep", "time", "digits"],
)
def test_lines_that_no_log_can_hold(line: str) -> None:
    with EventLog.memory() as log, pytest.raises(LogImportError, match="line 1: "):
        import_lines(log, [line])
