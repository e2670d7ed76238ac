"""A server assembles what the library makes of the same log at its client."""

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import deferred, record
from deeproot.runtime.context.budget import BudgetError
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.jsonl import export_lines, import_lines
from deeproot.runtime.context.openai_messages import export_messages
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.skills.skill import Skill
from deeproot.runtime.context.skills.use import use
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.limits import CallLimit
from deeproot.runtime.context.status.mode import Mode
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.thinking import Thinking
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context, WorkingSet
from deeproot.runtime.remote_working_sets import RemoteError, RemoteWorkingSet, WorkingSets

from ..harness import RunningServer
from .sets import BASH, TEMPLATE, Fields


def imported(kept: RemoteWorkingSet) -> EventLog:
    """The log of a set as its client may have it."""
    log = EventLog.memory()
    import_lines(log, kept.export().splitlines())
    return log


def assert_alike(
    policy: LayoutPolicy, tokenizer: TokenizersAdapter, kept: RemoteWorkingSet
) -> Context | None:
    """The server makes of a set what its client makes of the exported log, with its own tokenizer. None: both refuse."""
    template = ChatTemplate(TEMPLATE.read_text())
    try:
        ours = WorkingSet(policy=policy, tokenizer=tokenizer, template=template).assemble(imported(kept))
    except BudgetError as refusal:
        for act in (kept.context, kept.complete):
            with pytest.raises(RemoteError, match=re.escape(str(refusal))):
                act()
        return None
    assert_same(ours, kept.context())
    return ours


def assert_same(ours: Context, theirs: Fields) -> None:
    assert theirs["messages"] == json.loads(json.dumps(list(ours.messages)))
    assert theirs["tools"] == json.loads(json.dumps(list(ours.tools)))
    np.testing.assert_array_equal(theirs["token_ids"], ours.token_ids)
    assert [(b["key"], b["zone"], b["start"], b["end"]) for b in theirs["boundaries"]] == [
        (b.key, str(b.zone), b.start, b.end) for b in ours.boundaries
    ]
    assert theirs["report"]["dropped"] == json.loads(json.dumps([list(drop) for drop in ours.report.dropped]))


words = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    ["<|im_end|>", "</observation>", "FAILED tests/a.py::b - assert 1 == 2\n", "x" * 200]
)
POLICIES = {
    "three_zones": (ThreeZones(1200), {"budget": 1200}),
    "small_marks": (
        ThreeZones(900, keep_turns=1, reminder_tokens=20),
        {"policy": "three_zones", "budget": 900, "keep_turns": 1, "reminder_tokens": 20},
    ),
    "sliding_window": (SlidingWindow(800), {"policy": "sliding_window", "budget": 800}),
    "append_only": (AppendOnly(), {"policy": "append_only"}),
}


@st.composite
def turns(draw: st.DrawFn) -> list[Fields]:
    """What an agent appends, a body of new events each."""
    made: list[Fields] = []
    for i in range(draw(st.integers(0, 4))):
        call = {"id": f"c{i}", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
        match draw(st.sampled_from(["user", "call", "file", "state"])):
            case "user":
                made.append({"messages": [{"role": "user", "content": draw(words)}]})
            case "call":
                result = {
                    "kind": "tool_result",
                    "text": draw(words),
                    "call_id": f"c{i}",
                    "exit_code": draw(st.sampled_from([0, 1])),
                    "data": {"role": "tool", "message": {"name": "bash"}},
                    "time_ns": draw(st.integers(0, 2**62)),
                }
                asked = {
                    "kind": "assistant",
                    "text": draw(words),
                    "data": {"role": "assistant", "message": {"tool_calls": [call]}},
                }
                made.append({"events": [asked, result]})
            case "file":
                made.append(
                    {
                        "events": [
                            {"kind": "file_version", "text": draw(words), "data": {"uri": "file:///a.py"}}
                        ]
                    }
                )
            case "state":
                made.append(
                    {"events": [{"kind": "state_change", "text": draw(words), "data": {"name": "time"}}]}
                )
    return made


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=st.sampled_from(sorted(POLICIES)), bodies=turns(), constraint=words)
def test_the_server_assembles_what_a_client_would(
    server: RunningServer,
    sets: WorkingSets,
    tokenizer: TokenizersAdapter,
    name: str,
    bodies: list[Fields],
    constraint: str,
) -> None:
    policy, fields = POLICIES[name]
    root = [
        {"kind": "instruction", "text": "You fix tests.", "data": {"role": "system", "part": "policy"}},
        {"kind": "instruction", "text": constraint, "data": {"role": "system", "part": "constraint"}},
        {"kind": "instruction", "text": json.dumps([BASH]), "data": {"part": "tools"}},
        {"kind": "instruction", "text": "Fix it.", "data": {"role": "user"}},
    ]
    kept = sets.create(**fields, events=root)
    for body in bodies:
        kept.append(**body)
        assert_alike(policy, tokenizer, kept)
    before = assert_alike(policy, tokenizer, kept)
    if before is not None:
        answer = kept.complete(max_tokens=4, temperature=0.0)
        # What the engine computed is what the client counts, and what it sees next is in the log.
        assert answer["usage"]["prompt_tokens"] == before.token_ids.size
        server.wait_idle()
        cached = server.engine.scheduler.cache.probe(before.token_ids.tobytes())
        assert cached == before.token_ids.size, "the engine was given other tokens"
        said = answer["choices"][0]["message"]["content"] or ""
        assert said == export_messages(imported(kept))[-1]["content"]
        assert_alike(policy, tokenizer, kept)
    kept.delete()


def test_statuses_skills_and_marks_are_the_library_s(
    server: RunningServer, sets: WorkingSets, tokenizer: TokenizersAdapter
) -> None:
    log = EventLog.memory(clock=lambda: 1_700_000_000 * 10**9)
    bar = StatusBar(log, techniques=Techniques.all(), limits=[CallLimit("bash", 1)], mode=Mode.APPEND)
    record.policy(log, "You fix tests.")
    record.tools(log, [BASH, {**BASH, "defer_loading": True, "function": {"name": "later"}}])
    record.user(log, "Fix it.")
    for i, text in enumerate(["one", "two"]):
        function = {"name": "bash", "arguments": "{}"}
        call = {"id": f"c{i}", "type": "function", "function": function}
        record.assistant(log, "I look.", tool_calls=[call], reasoning="Hm.")
        record.tool_result(log, f"c{i}", text, name="bash", exit_code=0)
        bar.update()
    use(log, Skill("slides", "slides are made", "Write html first."))
    record.assistant(log, "", tool_calls=[{**call, "id": "s"}])
    deferred.answer(log, "s", {"name": "tool_search", "arguments": '{"query": "later"}'})
    lines = [json.loads(line) for line in export_lines(log)]
    events = [{k: v for k, v in line.items() if k != "seq"} for line in lines]
    asked = {"timestamps": True, "call_counter": True, "thinking": "scratch"}
    kept = sets.create(policy="append_only", events=events, **asked)
    ours = WorkingSet(
        policy=AppendOnly(),
        tokenizer=tokenizer,
        template=ChatTemplate(TEMPLATE.read_text()),
        techniques=Techniques(timestamps=True, call_counter=True),
        thinking=Thinking.SCRATCH,
    ).assemble(log)
    assert_same(ours, kept.context())
    text = json.dumps(kept.context()["messages"])
    assert "[call 2 of bash]" in text
    assert "bash: 2 calls (2/1) -> maximum reached" in text
    assert "Write html first." in text
    assert [tool["function"]["name"] for tool in kept.context()["tools"]] == ["bash", "tool_search"]
    kept.delete()
    nameless = {"kind": "instruction", "text": '[{"defer_loading": true}]', "data": {"part": "tools"}}
    with pytest.raises(RemoteError, match=r"function\.name is missing, but tools are deferred"):
        sets.create(budget=1900, events=[nameless])
