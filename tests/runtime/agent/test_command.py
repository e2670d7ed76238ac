"""`deeproot agent` as users start it: a process of its own, in a terminal and not."""

import json
import os
import pty
import subprocess
import threading
import time
from pathlib import Path

import pytest

from deeproot.runtime.cli import main
from deeproot.runtime.context.event_log import EventLog

from ..server.process import COMMAND
from .commands import DONE, READ, agent, the_log
from .scripted import Reply, ToolCall, scripted_server

pytestmark = pytest.mark.usefixtures("home")


def test_plain_lines_and_the_answer(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Reply("", [READ]), DONE) as server:
        assert main(agent(workspace, server.url, "Look.", "--price", "3", "--price-output", "15")) == 0
        (first, second) = server.requests
    out, err = capsys.readouterr()
    assert out == "It is \ufffd[31mdone\ufffd[0m.\n", "nothing that a terminal would obey"
    assert f"log: {the_log(workspace)}" in err
    lines = [line.strip() for line in err.splitlines()]
    assert any(line.startswith("turn 1: ") and "root" in line and "leaf" in line for line in lines)
    assert 'read {"path":"a.py"} -> 12 bytes' in lines
    prompt = sum(len(json.dumps(r)) for r in (first, second)) // 4
    summary = lines[-1]
    assert summary.startswith("2 turns, ")
    counted = int(summary.split()[2].replace(",", ""))
    assert abs(counted - prompt) < prompt * 0.1
    cached = int(summary.split("(")[1].split()[0].replace(",", ""))
    dollars = ((counted - cached) * 3 + cached * 3 + 20 * 15) / 1e6
    assert summary.endswith(f"${dollars:.4f}")
    assert first["model"] == "scripted"
    assert first["max_tokens"] == 4096


def test_json_lines(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Reply("", [READ], usage=False), DONE) as server:
        assert (
            main(agent(workspace, server.url, "Look.", "--json", "--model", "m", "--temperature", "0")) == 0
        )
        assert server.requests[0]["temperature"] == 0
    out, err = capsys.readouterr()
    assert err == ""
    events = [json.loads(line) for line in out.splitlines()]
    assert [e["event"] for e in events if e["event"] != "note"] == [
        "asked", "call_started", "call_ended", "asked", "replied", "end",
    ]  # fmt: skip
    assert events[-1]["answer"] == "It is \x1b[31mdone\x1b[0m."
    assert events[-1]["why"] == "answered"
    assert events[-1]["dollars"] is None
    asked = next(e for e in events if e["event"] == "asked")
    assert sum(asked["zones"].values()) == asked["tokens"]


def test_turns_run_out_and_the_run_goes_on(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Reply("", [READ]), Reply("", [READ]), DONE, Reply("And more.")) as server:
        assert main(agent(workspace, server.url, "Look.", "--max-turns", "1")) == 3
        assert "its 1 turns are used up" in capsys.readouterr().err
        assert main(["agent", "--workspace", str(workspace), "--resume"]) == 0
        assert main(["agent", "--workspace", str(workspace), "--resume"]) == 0
        assert len(server.bodies) == 3, "it had ended"
        assert main(["agent", "--workspace", str(workspace), "--resume", "Now more."]) == 0
        assert "Now more." in str(server.requests[-1]["messages"])
    assert capsys.readouterr().out.splitlines()[-1] == "And more."
    with scripted_server(DONE) as server:
        assert main(agent(workspace, server.url, "Something else.")) == 0
    assert the_log(workspace, 2).is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to do"),
        (["x", "--workspace", "nowhere"], "--workspace nowhere is no folder"),
        (["--resume"], "there is no run of this workspace to resume"),
        (["--resume", "--log", "missing.db"], "does not exist: there is nothing to resume"),
        (["x", "--log", "W/run.db"], "is in the workspace, where the agent could change it"),
        (["x", "--log", "a/b/run.db"], "there is no folder"),
        (["x", "--env", "NO_SUCH_VARIABLE"], "there is no such variable"),
        (["x", "--system", "missing.md"], "--system missing.md"),
        (["x", "--max-tokens", "40000", "--model", "m"], "leaves nothing of the model's window"),
        (["x", "--context-tokens", "300", "--model", "m"], "reach the high water mark"),
        (["x", "--tokenizer", "missing.json"], "--tokenizer"),
        (["x", "--chat-template", "missing.jinja"], "--chat-template"),
        (["x", "--base-url", "http://127.0.0.1:9/v1"], "no server answers at http://127.0.0.1:9/v1/models"),
    ],
)
def test_what_cannot_be_set_up_is_one_line(
    arguments: list[str],
    words: str,
    workspace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(workspace.parent)
    arguments = [argument.replace("W/", f"{workspace}/") for argument in arguments]
    with scripted_server(DONE) as server:
        assert main(agent(workspace, server.url, *arguments)) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("deeproot: error: ")
    assert words in error


def test_a_log_of_somebody_else(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = workspace.parent / "run.db"
    EventLog.open(foreign).close()
    assert main(agent(workspace, "http://x/v1", "--resume", "--log", str(foreign))) == 1
    assert "is not one of deeproot agent" in capsys.readouterr().err
    assert main(agent(workspace, "http://x/v1", "x", "--log", str(foreign))) == 1
    assert "--resume goes on with it" in capsys.readouterr().err
    other = workspace.parent / "other"
    other.mkdir()
    with scripted_server(DONE) as server:
        mine = workspace.parent / "mine.db"
        assert main(agent(workspace, server.url, "x", "--log", str(mine))) == 0
    assert main(agent(other, "http://x/v1", "--resume", "--log", str(mine))) == 1
    assert f"the run is of {workspace}" in capsys.readouterr().err


def test_the_view_in_a_terminal(workspace: Path) -> None:
    """Zones, tokens, cached, cost, what runs and what is said, while the run goes on."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                shown.extend(piece)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    calls = [READ, ToolCall("run", {"command": "sleep 1"})]
    with scripted_server(Reply("Let me look.", calls, between=lambda n: time.sleep(0.5)), DONE) as server:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        command = [COMMAND, *agent(workspace, server.url, "Go.", "--price", "3")]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=theirs, stdin=theirs, env=environment
        )
        out, _ = process.communicate(timeout=60)
    os.close(theirs)
    reader.join()
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0
    assert out.decode() == "It is \ufffd[31mdone\ufffd[0m.\n"
    for words in (
        "█",
        "root",
        "trunk",
        "leaf",
        "cached",
        "$0.0",
        "runs",
        "sleep 1",
        "says",
        "Let me look.",
        "of 24,",
    ):
        assert words in text, words
    assert "\x1b[?25h" in text, "the cursor is back"


def test_without_landlock_no_commands_are_offered(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*, network: bool = False) -> tuple[frozenset[str], tuple[str, ...]]:
        return frozenset(), ("run: commands cannot be kept to the workspace here (no Landlock)",)

    monkeypatch.setattr("deeproot.runtime.agent.command.probe", nothing)
    with scripted_server(Reply("", [ToolCall("run", {"command": "true"})]), DONE) as server:
        assert main(agent(workspace, server.url, "Go.")) == 0
        assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == [
            "patch",
            "read",
            "search",
            "write",
        ]
        assert "there is no tool 'run'" in server.requests[1]["messages"][3]["content"]
    assert "run: not offered for that; --unconfined offers it all the same" in capsys.readouterr().err
    with scripted_server(Reply("", [ToolCall("run", {"command": "echo free"})]), DONE) as server:
        assert main(agent(workspace, server.url, "Go.", "--unconfined")) == 0
        assert "\nfree\n" in str(server.requests[1]["messages"][3]["content"])
