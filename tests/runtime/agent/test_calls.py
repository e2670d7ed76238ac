"""Calls of a scripted model: what runs when, what the model is told of it, and calls that cannot be made."""

import json
import threading
from pathlib import Path

import pytest

from deeproot.runtime.agent.session import ANSWERED
from deeproot.runtime.agent.shell import Limits
from deeproot.runtime.context.event_log import EventLog

from .runs import go, result_of, said_to
from .scripted import Reply, ToolCall


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
