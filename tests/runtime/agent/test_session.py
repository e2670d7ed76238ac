"""The loop against a scripted model: what is started when, what the model is told, and what happens when things fail."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.agent.session import ANSWERED, TURNS
from deeproot.runtime.agent.setup import begin
from deeproot.runtime.agent.shell import Limits
from deeproot.runtime.agent.stream import ModelError
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.measure.actions import read_run

from .killing import DyingLog, Killed
from .runs import Seen, clock, run_session, run_task, settings_for
from .scripted import Entry, Refusal, Reply, ScriptedServer, ToolCall, scripted_server


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    (made / "a.py").write_text("PORT = 5432\n")
    return made


@pytest.fixture
def log() -> Iterator[EventLog]:
    with EventLog.memory() as made:
        yield made


def said_to(server: ScriptedServer, request: int = -1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = server.requests[request]["messages"]
    return messages


def result_of(server: ScriptedServer, call_id: str, request: int = -1) -> str:
    """What the model was told of a call."""
    (found,) = [m["content"] for m in said_to(server, request) if m.get("tool_call_id") == call_id]
    return str(found)


def go(log: EventLog, workspace: Path, *script: Entry, **options: Any) -> tuple[ScriptedServer, Seen, str]:
    seen = Seen()
    with scripted_server(*script, in_order=True) as server:
        end = run_task(log, workspace, server.url, seen=seen, **options)
    return server, seen, end


def test_a_whole_run(log: EventLog, workspace: Path) -> None:
    server, seen, end = go(
        log,
        workspace,
        Reply("I look.", [ToolCall("read", {"path": "a.py"})], reasoning="where is it"),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "5432", "new": "5433"})]),
        Reply("", [ToolCall("run", {"command": "cat a.py"})]),
        Reply("Done."),
    )
    assert end == ANSWERED
    assert (workspace / "a.py").read_text() == "PORT = 5433\n"
    assert "PORT = 5433" in result_of(server, "c2-0")
    first = said_to(server, 1)[2]
    assert first["reasoning_content"] == "where is it"
    assert first["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "a.py"}'}
    assert "no longer so: #8" in seen.notes
    assert "PORT = 5432" not in str(
        [m["content"] for m in said_to(server) if "read/c0-0" in str(m["content"])]
    )
    assert [call.name for turn in read_run(log).actions for call in turn.calls] == ["read", "patch", "run"]
    assert len(seen.staged) == 4


def test_the_prompt_only_grows_at_its_end(log: EventLog, workspace: Path) -> None:
    """Every request begins with the messages of the one before, but for the tail that speaks of the newest state."""
    server, _, _ = go(
        log,
        workspace,
        *[Reply(f"look {n}", [ToolCall("search", {"pattern": f"x{n}"})]) for n in range(4)],
        Reply("Done."),
    )
    for earlier, later in pairwise(server.requests):
        kept = earlier["messages"][:-1]  # the reminder
        assert later["messages"][: len(kept)] == kept
        assert later["tools"] == earlier["tools"]


def test_a_call_starts_before_the_reply_ends(log: EventLog, workspace: Path) -> None:
    """The model goes on only when the file that its first call writes is there."""
    met = threading.Event()

    def wait_for_file(number: int) -> None:
        if number == 0:
            for _ in range(500):
                if (workspace / "early.txt").exists():
                    met.set()
                    return
                threading.Event().wait(0.01)

    calls = [
        ToolCall("write", {"path": "early.txt", "content": "x"}),
        ToolCall("read", {"path": "early.txt"}),
    ]
    server, seen, _ = go(log, workspace, Reply("", calls, between=wait_for_file), Reply("Done."))
    assert met.is_set(), "the model would have waited in vain"
    assert seen.order.index("+c0-0") < seen.order.index("replied")
    assert "\nx\n" in result_of(server, "c0-1")


def test_readers_run_beside_each_other_and_writers_in_order(
    log: EventLog, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two searches, of which the first takes for ever, a run that waits for both, a read that waits for the run."""
    monkeypatch.setattr("deeproot.runtime.agent.searching._SEARCH_S", 3.0)
    (workspace / "slow.txt").write_text("a" * 40 + "b")
    calls = [
        ToolCall("search", {"pattern": "(a+)+$", "path": "slow.txt"}),
        ToolCall("search", {"pattern": "5432"}),
        ToolCall("run", {"command": "echo PORT = 1 > a.py; sleep 0.2"}),
        ToolCall("read", {"path": "a.py"}),
        ToolCall("write", {"path": "n", "content": ""}),
    ]
    server, seen, _ = go(log, workspace, Reply("", calls), Reply("Done."))
    at = seen.order.index
    assert at("-c0-1") < at("-c0-0"), "the second has ended before the first"
    assert max(at("-c0-0"), at("-c0-1")) < at("+c0-2")
    assert at("-c0-2") < at("+c0-3")
    assert at("-c0-3") < at("+c0-4")
    assert "5432" in result_of(server, "c0-1")
    assert "PORT = 1" in result_of(server, "c0-3")
    assert [m.get("tool_call_id") for m in said_to(server) if m["role"] == "tool"] == [
        f"c0-{i}" for i in range(5)
    ]


def test_calls_that_cannot_be_made_are_answered(log: EventLog, workspace: Path) -> None:
    calls = [
        ToolCall("read", '{"path": '),
        ToolCall("fly", {}),
        ToolCall("read", {"path": "../x"}),
        ToolCall("write", {"path": "a.py", "content": "blind"}),
        ToolCall("run", {"command": "exit 3"}),
        ToolCall("read", {}),
    ]
    server, _, end = go(log, workspace, Reply("", calls), Reply("Done."))
    assert end == ANSWERED
    for number, words in enumerate(
        [
            "is no JSON",
            "no tool 'fly'",
            "leads out of the workspace",
            "you have not read it",
            "[no output]",
            "path: field required",
        ]
    ):
        assert words in result_of(server, f"c0-{number}")
    assert 'exit_code="3"' in result_of(server, "c0-4")
    assert json.loads(said_to(server)[2]["tool_calls"][0]["function"]["arguments"]) == {
        "malformed": '{"path": '
    }
    assert (workspace / "a.py").read_text() == "PORT = 5432\n"


def test_a_fault_of_a_tool_is_its_result(
    log: EventLog, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("deeproot.runtime.agent.file_tools.read", fail)
    server, _, end = go(log, workspace, Reply("", [ToolCall("read", {"path": "a.py"})]), Reply("Done."))
    assert end == ANSWERED
    assert "read failed: MemoryError: no room" in result_of(server, "c0-0")


def test_repeated_calls_are_noticed(log: EventLog, workspace: Path) -> None:
    read, run = ToolCall("read", {"path": "a.py"}), ToolCall("run", {"command": "true"})
    other_spelling = ToolCall("read", '{ "path" : "a.py" }')
    patch = ToolCall("patch", {"path": "a.py", "old": "5432", "new": "5433"})
    server, seen, _ = go(
        log,
        workspace,
        Reply("", [read]),
        Reply("", [other_spelling]),
        Reply("", [patch]),
        Reply("", [read]),
        Reply("", [run]),
        Reply("", [run]),
        Reply("", [run]),
        Reply("", [read, read]),
        Reply("Done."),
    )
    noticed = [note for note in seen.notes if note.startswith("repeated call")]
    assert [note.split("{")[0] for note in noticed] == [
        "repeated call: read ",  # the second read
        "repeated call: run ",  # the third run
        "repeated call: read ",  # twice in one reply
    ]
    told = [str(m["content"]) for m in said_to(server) if "[repeated call" in str(m["content"])]
    assert len(told) == 3
    assert "was made once before, the last time by #" in told[0]
    assert "was made 2 times before" in told[1]


def test_the_cap_on_turns_and_going_on(log: EventLog, workspace: Path) -> None:
    script = [*[Reply("", [ToolCall("search", {"pattern": f"{n}"})]) for n in range(3)], Reply("Done.")]
    with scripted_server(*script, in_order=True) as server:
        assert run_task(log, workspace, server.url, max_turns=2) == TURNS
        assert len(server.bodies) == 2
        assert asyncio.run(run_session(log, workspace, server.url, max_turns=2)) == TURNS
        assert len(server.bodies) == 2
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED
        assert len(server.bodies) == 4, "what has ended asks nothing"


def test_a_server_that_is_busy_or_fails_is_asked_again(log: EventLog, workspace: Path) -> None:
    first: Entry = [
        Refusal(503, "loading"),
        Reply("half", drop_after=0),
        Reply("", [ToolCall("read", {"path": "a.py"})]),
    ]
    server, seen, end = go(log, workspace, first, Reply("Done."))
    assert end == ANSWERED
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    assert "the server answered 503: loading; asking again in 0 s" in seen.notes
    assert any(note.startswith(("the stream ended before", "the connection failed")) for note in seen.notes)


def test_a_server_that_stays_away(log: EventLog, workspace: Path) -> None:
    with pytest.raises(ModelError, match="no reply after 3 tries: the server answered 503"):
        go(log, workspace, Refusal(503))
    with (
        pytest.raises(ModelError, match="400: your prompt is too long"),
        scripted_server(Refusal(400, "your prompt is too long")) as server,
    ):
        asyncio.run(run_session(log, workspace, server.url))
    with scripted_server(Reply("Done.")) as server:
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED


def test_a_dropped_reply_whose_calls_only_read_is_asked_for_anew(log: EventLog, workspace: Path) -> None:
    read = ToolCall("read", {"path": "a.py"})
    server, _, _ = go(
        log, workspace, [Reply("", [read, read], drop_after=1), Reply("", [read])], Reply("Done.")
    )
    assert server.bodies[0] == server.bodies[1]
    assert len([m for m in said_to(server) if m["role"] == "tool"]) == 1


def test_a_dropped_reply_that_wrote_stands(log: EventLog, workspace: Path) -> None:
    calls = [ToolCall("run", {"command": "echo x >> n"}), ToolCall("run", {"command": "echo y >> n"})]
    server, _, _ = go(log, workspace, Reply("I write.", calls, drop_after=1), Reply("Done."))
    assert (workspace / "n").read_text() == "x\n", "once, and the call that never came was not made"
    assert said_to(server)[2]["content"] == "I write."
    assert [call["id"] for call in said_to(server)[2]["tool_calls"]] == ["c0-0"]
    assert any("your reply was cut off behind the last call" in str(m["content"]) for m in said_to(server))


def test_call_ids_that_are_missing_or_come_again(log: EventLog, workspace: Path) -> None:
    def read(call_id: str) -> ToolCall:
        return ToolCall("read", {"path": "a.py"}, id=call_id)

    server, _, _ = go(
        log,
        workspace,
        Reply("", [read("call_0"), read("call_0")]),
        Reply("", [read("call_0")]),
        Reply("Done."),
    )
    ids = [call["id"] for m in said_to(server) for call in m.get("tool_calls") or ()]
    assert len(set(ids)) == 3
    assert ids[0] == "call_0"
    assert [m["tool_call_id"] for m in said_to(server) if m["role"] == "tool"] == ids


@pytest.mark.parametrize("tool", ["write", "patch"])
def test_somebody_elses_change_is_found_before_it_is_overwritten(
    tool: str, log: EventLog, workspace: Path
) -> None:
    """Between the model's look and its edit, the user edits: the edit is refused, and the file shown as it is."""

    def edit(*_: object) -> None:
        (workspace / "a.py").write_text("PORT = 5432\nUSER = 1\n")

    change = {
        "write": {"path": "a.py", "content": "PORT = 5433\n"},
        "patch": {"path": "a.py", "old": "5432", "new": "5433"},
    }[tool]
    server, _, _ = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [ToolCall(tool, change)], first=edit),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "5432", "new": "5434"})]),
        Reply("Done."),
    )
    assert "is not as event 8 showed it: somebody else changed it since" in result_of(server, "c1-0")
    shown = [str(m["content"]) for m in said_to(server, 2)]
    assert any("<artifact" in text and "USER = 1" in text for text in shown), "it was read anew for the model"
    assert (workspace / "a.py").read_text() == "PORT = 5434\nUSER = 1\n", "made anew, on what is there"


def test_what_a_command_changed_is_the_agents_own_doing(log: EventLog, workspace: Path) -> None:
    server, seen, _ = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [ToolCall("run", {"command": "sed -i s/5432/1/ a.py"})]),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "= 1", "new": "= 2"})]),
        Reply("Done."),
    )
    assert (workspace / "a.py").read_text() == "PORT = 2\n"
    assert "no longer so: #8" in seen.notes
    assert b"a.py changed by others" not in b"".join(server.bodies)


def test_a_file_that_became_a_link_is_not_read_anew(log: EventLog, workspace: Path) -> None:
    """The way out over what the host itself reads for the model."""
    secret = workspace.parent / "secret.txt"
    secret.write_text("the secret")

    def swap(*_: object) -> None:
        (workspace / "a.py").unlink()
        (workspace / "a.py").symlink_to(secret)

    server, _, end = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "5432", "new": "1"})], first=swap),
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("Done."),
    )
    assert end == ANSWERED
    assert b"the secret" not in b"".join(server.bodies)
    assert secret.read_text() == "the secret"


def test_a_test_run_is_in_doubt_once_what_it_tested_changes(log: EventLog, workspace: Path) -> None:
    (workspace / "check.py").write_text("import a\nassert a.PORT == 1, a.PORT\n")
    check = ToolCall("run", {"command": "python3 check.py"})
    server, _, _ = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [check]),
        Reply("", [ToolCall("write", {"path": "a.py", "content": "PORT = 1\n"})]),
        Reply("", [check]),
        Reply("Done."),
    )
    tail = [str(m["content"]) for m in said_to(server, 3)]
    assert any("in doubt #" in text and "a.py changed by #" in text for text in tail)
    assert 'exit_code="1"' in result_of(server, "c1-0")
    assert 'exit_code="0"' in result_of(server, "c3-0")
    assert any("stale #" in str(m["content"]) for m in said_to(server, 4)), "the first run no longer holds"


def test_time_and_output_limits_reach_the_model(log: EventLog, workspace: Path) -> None:
    calls = [
        ToolCall("run", {"command": "echo begun; sleep 60", "timeout_s": 0.5}),
        ToolCall("run", {"command": "head -c 100000 /dev/zero | tr '\\0' x"}),
        ToolCall("run", {"command": "head -c 1000 /dev/urandom"}),
    ]
    limits = Limits(seconds=10, keep_bytes=2000)
    server, _, _ = go(log, workspace, Reply("", calls), Reply("Done."), limits=limits)
    assert "begun\n[killed after 0.5 s, the time limit]" in result_of(server, "c0-0")
    assert "[98000 bytes left out]" in result_of(server, "c0-1")
    assert "[binary output, 1000 bytes, BLAKE3 " in result_of(server, "c0-2")
    digest = result_of(server, "c0-2").split("BLAKE3 ")[1][:64]
    assert len(log.payload(digest)) == 1000, "the archive has the bytes"


def test_a_long_run_stays_within_its_window(log: EventLog, workspace: Path) -> None:
    """Far more is read than fits: the prompt never passes the budget, and the rule and the task stay."""
    budget = 6000
    for n in range(12):
        (workspace / f"f{n}.txt").write_text(f"file {n}\n" + f"line of file {n}\n" * 300)
    script = [
        *[Reply(f"Now {n}.", [ToolCall("read", {"path": f"f{n}.txt"})]) for n in range(12)],
        Reply("Done."),
    ]
    seen = Seen()
    with scripted_server(*script, in_order=True) as server:
        begin(
            log,
            settings_for(workspace, server.url, budget=budget),
            "Read them all.",
            constraints=["Never lie."],
        )
        assert asyncio.run(run_session(log, workspace, server.url, seen=seen)) == ANSWERED
    assert len(seen.staged) == 13
    assert max(seen.staged) <= budget
    assert any(note.startswith("compaction:") for note in seen.notes)
    for request in server.requests:
        text = json.dumps(request["messages"])
        assert "Read them all." in text
        assert "Never lie." in text
        calls = [call["id"] for m in request["messages"] for call in m.get("tool_calls") or ()]
        assert calls == [m["tool_call_id"] for m in request["messages"] if m["role"] == "tool"]


def test_replies_that_are_too_long(log: EventLog, workspace: Path) -> None:
    cut = Reply("", [ToolCall("write", '{"path": "n", "content": "abc')], finish="length")
    server, seen, end = go(log, workspace, cut, Reply("An answer that", finish="length"))
    assert "is no JSON" in result_of(server, "c0-0")
    assert any("cut off at its limit of tokens" in str(m["content"]) for m in said_to(server))
    assert not (workspace / "n").exists()
    assert end == ANSWERED
    assert "the answer was cut off at --max-tokens" in seen.notes


SKILL = """---
name: ports
use_when: a port is changed
not_when: a port is only read
counter_examples:
  - which port is it
---
Tell the user the old port too.
"""


def test_status_list_and_skills(log: EventLog, workspace: Path) -> None:
    """Tools that the host answers: each result in its place, a skill's body once, the list and the counts at the end."""
    folder = workspace.parent / "skills" / "ports"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    use = ToolCall("use_skill", {"name": "ports"})
    script = [
        Reply(
            "",
            [
                use,
                use,
                ToolCall("rewrite_todo_list", {"items": ["look", "change"]}),
                ToolCall("read", {"path": "a.py"}),
            ],
        ),
        Reply(
            "",
            [
                ToolCall("update_todo_status", {"number": 1, "status": "done"}),
                ToolCall("use_skill", {"name": "x"}),
            ],
        ),
        Reply("Done."),
    ]
    with scripted_server(*script, in_order=True) as server:
        settings = settings_for(
            workspace, server.url, status=True, time_budget_s=3600.0, skills=str(folder.parent)
        )
        begin(log, settings, "Change the port.")
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED
        again = asyncio.run(run_session(log, workspace, server.url))
        assert (again, len(server.bodies)) == (ANSWERED, 3)
    assert "- ports: " in said_to(server)[0]["content"]
    assert "time budget" in said_to(server)[0]["content"]
    names = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert {"use_skill", "rewrite_todo_list", "update_todo_status", "read"} <= set(names)
    second = said_to(server, 1)
    assert [m["tool_call_id"] for m in second if m["role"] == "tool"] == ["c0-0", "c0-1", "c0-2", "c0-3"]
    assert "stand above already" in result_of(server, "c0-1", 1)
    assert str(second).count("Tell the user the old port too.") == 1
    assert "[call 2 of use_skill]" in result_of(server, "c0-1", 1)
    tail = str(second[-1]["content"])
    assert "<agent_status>" in tail
    for words in ("todo: 0 of 2 done", "read 1", "time budget"):
        assert words in tail
    assert "todo: 1 of 2 done" in str(said_to(server)[-1]["content"])
    assert "there is no skill 'x'; give one of: ports" in result_of(server, "c1-1")


@pytest.mark.parametrize("commit", range(1, 9))
def test_with_a_status_a_run_goes_on_with_the_same_bytes(commit: int, tmp_path: Path) -> None:
    """Killed at any commit, also between the status and the request."""
    bodies = []
    for stop in (0, commit):
        workspace = tmp_path / str(stop) / "workspace"
        workspace.mkdir(parents=True)
        (workspace / "a.py").write_text("x = 1\n")
        script = [
            Reply("", [ToolCall("read", {"path": "a.py"})]),
            Reply("", [ToolCall("read", {"path": "."})]),
            Reply("Done."),
        ]
        with scripted_server(*script) as server:
            with DyingLog.open(tmp_path / f"{stop}.db", clock=clock) as log:
                begin(log, settings_for(workspace, server.url, status=True), "Do it.")
                log.commits, log.at = 0, stop
                with contextlib.suppress(Killed):
                    asyncio.run(run_session(log, workspace, server.url))
            with EventLog.open(tmp_path / f"{stop}.db", clock=clock) as again:
                asyncio.run(run_session(again, workspace, server.url))
            bodies.append(server.bodies[-1])
    assert b"<agent_status>" in bodies[0]
    assert bodies[0] == bodies[1]


def test_a_server_that_does_not_say_what_it_cached(log: EventLog, workspace: Path) -> None:
    """It is not taken for one that has cached nothing."""
    go(log, workspace, Reply("", [ToolCall("read", {"path": "a.py"})], cached=False), Reply("Done."))
    first, second = (event.data for event in log.read() if event.data.get("part") == "usage")
    assert "cached_tokens" not in first
    assert second["cached_tokens"] > 0


def test_long_output_of_a_build_is_staged_as_its_errors(log: EventLog, workspace: Path) -> None:
    (workspace / "build.py").write_text(
        "for n in range(400): print(f'gcc -c -O2 -o out/part{n}.o src/part{n}.c')\n"
        "print('src/nic.c:12:5: error: expected declaration or statement at end of input')\n"
        "print('make: *** [Makefile:3: out/nic.o] Error 1')\n"
        "raise SystemExit(2)\n"
    )
    build = Reply("", [ToolCall("run", {"command": "python3 build.py"})])
    server, _, _ = go(log, workspace, build, Reply("Done."))
    told = result_of(server, "c0-0")
    assert "src/nic.c:12:5" in told
    assert "expected declaration or statement" in told
    assert "part200.o" not in told
    (result,) = [event for event in log.read() if event.kind.value == "tool_result"]
    assert b"part200.o" in log.payload(result), "the archive has all of it"
