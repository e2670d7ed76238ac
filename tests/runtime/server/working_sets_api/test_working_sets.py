"""Working sets on a real server, through the Python client, against the library that a client would use itself."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
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
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.remote_working_sets import RemoteError, RemoteWorkingSet, WorkingSets

from ..harness import RunningServer, ScriptedForward, SlowForward, running_server, wait_until

TEMPLATE = Path(__file__).parents[2] / "context" / "templates" / "qwen2.5-instruct.jinja"
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    },
}
Fields = dict[str, Any]


@pytest.fixture(scope="module")
def options(tiny_options: EngineOptions) -> EngineOptions:
    """A template that knows tools, and room for a prompt that names some."""
    return dataclasses.replace(tiny_options, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def server(options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(
        options,
        ServerOptions(port=0, max_working_sets=10_000),
        wrap=lambda engine: ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def sets(server: RunningServer) -> Iterator[WorkingSets]:
    with WorkingSets(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    """What sends bodies that the Python client would not."""
    with httpx.Client(base_url=f"{server.url}/v1/working_sets/") as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> TokenizersAdapter:
    """The client's own: of another library than the server's."""
    return TokenizersAdapter.from_file(tiny_model / "tokenizer.json")


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


def status_of(error: pytest.ExceptionInfo[RemoteError]) -> tuple[int, str | None]:
    return error.value.status, error.value.code


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


def test_an_agent_sends_only_what_is_new(server: RunningServer, sets: WorkingSets) -> None:
    runner = server.engine.scheduler.runner
    assert isinstance(runner, ScriptedForward)
    call = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "pytest"}}\n</tool_call>'
    seed = runner.will_say(call)
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Run the tests."}], tools=[BASH])
    answer = kept.complete(seed=seed, max_tokens=120)
    made = answer["choices"][0]["message"]["tool_calls"][0]
    assert (made["function"]["name"], kept.num_events) == ("bash", 3)
    assert answer["deeproot"]["working_set"] == {"id": kept.set_id, "num_events": 3}
    result = {"role": "tool", "tool_call_id": made["id"], "name": "bash", "content": "2 passed"}
    seed = runner.will_say("All pass.")
    again = kept.complete(messages=[result], seed=seed, max_tokens=40)
    assert again["choices"][0]["message"]["content"] == "All pass."
    # The turn before is in the cache, tool call and all, but for the reminder's and the status's place.
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= answer["usage"]["prompt_tokens"]
    roles = [message["role"] for message in kept.context()["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]


def test_a_stream_says_and_logs_the_same(server: RunningServer, sets: WorkingSets) -> None:
    asked = {"budget": 1500, "messages": [{"role": "user", "content": "Say something."}]}
    whole, streamed = sets.create(**asked), sets.create(**asked)
    options = {"max_tokens": 12, "seed": 5, "temperature": 1.0}
    answer = whole.complete(**options)["choices"][0]
    chunks = list(streamed.stream(**options, stream_options={"include_usage": True}))
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == answer["message"]["content"]
    assert chunks[-1]["deeproot"]["working_set"] == {"id": streamed.set_id, "num_events": 2}
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert streamed.num_events == whole.num_events == 2
    assert streamed.context()["messages"] == whole.context()["messages"]


def test_a_reply_that_is_not_to_be_kept(sets: WorkingSets) -> None:
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Try."}])
    answer = kept.complete(max_tokens=3, record=False)
    assert "deeproot" not in answer
    assert len(kept.export().splitlines()) == 1


def test_what_is_wrong_is_named_and_nothing_is_appended(sets: WorkingSets) -> None:
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Hello"}])
    good = {"kind": "state_change", "text": "1", "data": {"name": "n"}}
    for bad, field in [
        ({"kind": "wish", "text": "x"}, "events[1].kind"),
        ({"kind": "assistant"}, "events[1]"),
        ({"kind": "assistant", "base64": "!"}, "events[1]"),
        ({"kind": "assistant", "text": "x", "blake3": "00"}, "events[1]"),
        ({"kind": "instruction", "text": "{}", "data": {"part": "tools"}}, "events[1].text"),
        ({"kind": "state_change", "text": "x", "data": {"part": "stand_in"}}, "events[1].data.part"),
        (
            {"kind": "tool_result", "text": "x", "data": {"message": {"tool_calls": 3}}},
            "events[1].data.message",
        ),
    ]:
        with pytest.raises(RemoteError) as error:
            kept.append(events=[good, bad])
        assert error.value.status == 400
        assert field in str(error.value), bad
    with pytest.raises(RemoteError, match=r"messages\[0\]\.role"):
        kept.append(messages=[{"role": "oracle", "content": "x"}])
    for fields, text in [
        ({"budget": None}, "budget"),
        ({"budget": 10**6}, "window"),
        ({"budget": {"total": 9, "low": 2.0}}, "low"),
    ]:
        with pytest.raises(RemoteError, match=text):
            sets.create(**fields)
    with pytest.raises(RemoteError, match="n must be 1"):
        kept.complete(n=2)
    assert len(kept.export().splitlines()) == 1


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_has_no_word_for_are_named(
    http: httpx.Client, sets: WorkingSets, number: str
) -> None:
    """The parser of bodies takes them; a log cannot."""
    kept = sets.create(policy="append_only")
    bodies = {
        "events[1].data": '{"events": [{"kind": "instruction", "text": "a"}, {"kind": "instruction", "text": "b",'
        f' "data": {{"step": {{"x": {number}}}}}}}]}}',
        "messages": f'{{"messages": [{{"role": "user", "content": "a", "x": {number}}}]}}',
    }
    for field, body in bodies.items():
        refused = http.post(f"{kept.set_id}/events", content=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == field
    assert not kept.export()


def test_a_client_that_is_behind_appends_nothing(sets: WorkingSets) -> None:
    kept = sets.create(policy="append_only", messages=[{"role": "user", "content": "a"}])
    other = sets.open(kept.set_id)
    assert other.append(messages=[{"role": "user", "content": "b"}]) == 2
    with pytest.raises(RemoteError) as error:
        kept.append(messages=[{"role": "user", "content": "c"}])
    assert status_of(error) == (409, "conflict")
    assert len(kept.export().splitlines()) == 2
    assert len(kept.export(after=1).splitlines()) == 1


def test_a_set_that_cannot_be_assembled_hurts_no_other(server: RunningServer, sets: WorkingSets) -> None:
    fine = sets.create(budget=1500, messages=[{"role": "user", "content": "Hello"}])
    empty = sets.create(budget=1500)
    over = sets.create(policy="append_only", budget=30, messages=[{"role": "user", "content": "x" * 500}])
    for bad, code in [(empty, None), (over, "over_budget")]:
        for act in (bad.context, lambda bad=bad: bad.complete(max_tokens=2)):
            with pytest.raises(RemoteError) as error:
                act()
            assert status_of(error) == (400, code)
    assert fine.complete(max_tokens=2)["usage"]["completion_tokens"] >= 1
    # And it can be mended: nothing waits for the reply that never was.
    assert empty.append(messages=[{"role": "user", "content": "Hi"}]) == 1
    assert empty.complete(max_tokens=2)["usage"]["completion_tokens"] >= 1
    server.wait_idle()


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "role",
    "part",
    "name",
    "uri",
    "message",
    "conditions",
    "keep",
    "anchor",
    "content",
    "parts",
    "action",
    "step",
    "state",
    "mode",
    "names",
]
data = st.dictionaries(
    st.sampled_from(KEYS),
    json_values
    | st.sampled_from(["tool", "policy", "tools", "parts", "usage", "status", "skill", "schemas", "append"])
    | st.fixed_dictionaries(
        {}, optional={"tool_calls": json_values, "content": json_values, "role": json_values}
    ),
    max_size=4,
)
any_event = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(
            ["instruction", "assistant", "tool_result", "file_version", "diagnostic", "state_change"]
        )
    },
    optional={
        "text": st.text(max_size=20) | json_values,
        "base64": st.sampled_from(["", "AAAA", "/w=="]),
        "data": data,
        "call_id": st.text(max_size=3),
        "exit_code": st.integers(-3, 2**70),
        "time_ns": st.integers(-1, 2**70),
    },
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(any_event, min_size=1, max_size=4))
def test_whatever_is_logged_the_server_answers(
    http: httpx.Client, sets: WorkingSets, events: list[Fields]
) -> None:
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Hello"}])
    answers = [http.post(f"{kept.set_id}/events", json={"events": [event]}) for event in events]
    answers.append(http.get(f"{kept.set_id}/context"))
    assert {answer.status_code for answer in answers} <= {200, 400}, [answer.text for answer in answers]
    kept.delete()


def test_another_key_sees_nothing(options: EngineOptions) -> None:
    with running_server(options, ServerOptions(port=0, api_keys=("one", "two"))) as running:
        mine, theirs = (WorkingSets(running.url, api_key=key) for key in ("one", "two"))
        kept = mine.create(budget=1500, messages=[{"role": "user", "content": "Secret"}])
        assert (len(mine.all()), theirs.all()) == (1, [])
        stranger = RemoteWorkingSet(theirs, kept.set_id, 1)
        unknown = RemoteWorkingSet(theirs, "ws_0", 1)
        for other in (stranger, unknown):
            for act in (
                other.context,
                other.export,
                other.delete,
                other.complete,
                lambda o=other: o.append(),
            ):
                with pytest.raises(RemoteError) as error:
                    act()
                assert status_of(error) == (404, "not_found")
            with pytest.raises(RemoteError, match="no working set"):
                list(other.stream())
            with pytest.raises(RemoteError, match="no working set"):
                theirs.open(other.set_id)
        assert kept.export().count("Secret") == 1


def test_a_client_has_so_many_and_so_much(options: EngineOptions) -> None:
    limits = ServerOptions(port=0, api_keys=("one", "two"), max_working_sets=2, working_set_bytes=5000)
    with running_server(options, limits) as running:
        mine, theirs = (WorkingSets(running.url, api_key=key) for key in ("one", "two"))
        first, _ = mine.create(policy="append_only"), mine.create(policy="append_only")
        with pytest.raises(RemoteError) as error:
            mine.create(policy="append_only")
        assert status_of(error) == (413, "working_sets_full")
        theirs.create(policy="append_only", messages=[{"role": "user", "content": "x" * 4000}])
        first.append(messages=[{"role": "user", "content": "x" * 2500}])
        with pytest.raises(RemoteError, match="working-set-bytes"):
            first.append(messages=[{"role": "user", "content": "x" * 2500}])
        assert first.num_events == len(first.export().splitlines()) == 1
        first.delete()
        assert len(mine.all()) == 1
        mine.create(policy="append_only", messages=[{"role": "user", "content": "x" * 4000}])


def test_sets_outlive_the_server(options: EngineOptions, tmp_path: Path) -> None:
    kept_in = ServerOptions(port=0, working_set_store=tmp_path / "sets")
    with running_server(options, kept_in) as running, WorkingSets(running.url) as client:
        kept = client.create(budget=900, keep_turns=1, messages=[{"role": "user", "content": "Remember me"}])
        gone = client.create(policy="append_only", messages=[{"role": "user", "content": "Forget me"}])
        kept.complete(max_tokens=3)
        before, described = kept.context(), client.all()[0]
        gone.delete()
    assert not list((tmp_path / "sets").rglob(f"{gone.set_id}*"))
    broken = tmp_path / "sets" / "anyone" / "ws_broken"
    broken.mkdir()
    (broken / "settings.json").write_text("{")
    with running_server(options, kept_in) as running, WorkingSets(running.url) as client:
        assert client.all() == [described]
        again = client.open(kept.set_id)
        assert again.context() == before
        assert again.append(messages=[{"role": "user", "content": "Go on"}]) == 3
    assert broken.exists()


def test_a_reply_that_is_cut_off_is_not_logged(options: EngineOptions) -> None:
    with running_server(options, wrap=lambda engine: SlowForward(engine.scheduler.runner, 0.02)) as running:
        with WorkingSets(running.url) as client:
            kept = client.create(budget=1500, messages=[{"role": "user", "content": "Talk."}])
            stream = kept.stream(max_tokens=500, ignore_eos=True)
            next(stream)
            other = client.open(kept.set_id)
            for act in (other.complete, lambda: other.append(messages=[{"role": "user", "content": "Stop"}])):
                with pytest.raises(RemoteError) as error:
                    act()
                assert status_of(error) == (409, "conflict")
            stream.close()

            def let_go() -> bool:
                try:
                    return other.append(messages=[{"role": "user", "content": "Stop"}]) == 2
                except RemoteError:
                    return False

            wait_until(let_go)
            assert "assistant" not in kept.export()
        running.wait_idle()


def test_a_full_disk_appends_nothing_and_hurts_no_other_set(
    options: EngineOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite is told how large a log may become: what it then says is what it says of a full disk."""
    kept_in = ServerOptions(port=0, working_set_store=tmp_path / "sets")
    long = {"messages": [{"role": "user", "content": "x" * 50_000}]}
    with running_server(options, kept_in) as running, WorkingSets(running.url) as client:
        full = client.create(policy="append_only", messages=[{"role": "user", "content": "Hello"}])
        other = client.create(policy="append_only", messages=[{"role": "user", "content": "Hello"}])
        service = running.state.working_sets

        def of_log(pragma: str) -> int:
            """In the thread of the logs."""
            log = service._store.get("", full.set_id).log
            return int(service._thread.submit(lambda: log._db.execute(pragma).fetchone()[0]).result())

        before, pages = full.export(), of_log("PRAGMA page_count")
        of_log(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(RemoteError, match="The store of working sets has failed") as failed:
            full.append(**long)
        assert failed.value.status == 503
        assert full.export() == before
        assert full.complete(max_tokens=2, record=False)["choices"][0]["finish_reason"] == "length"
        assert other.complete(max_tokens=2)["choices"][0]["finish_reason"] == "length"

        def no_room(log: EventLog, new: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(EventLog, "extend", no_room)
            with pytest.raises(RemoteError) as failed:
                client.create(policy="append_only", messages=[{"role": "user", "content": "Hello"}])
            assert failed.value.status == 503
        assert len(client.all()) == len(list((tmp_path / "sets").rglob("settings.json"))) == 2
        of_log(f"PRAGMA max_page_count = {pages + 100}")
        assert full.append(**long) == 2
        running.wait_idle()
