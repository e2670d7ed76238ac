"""A running `deeproot agent` that is stopped, killed, or started beside another."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.agent.turn_log import read_progress
from deeproot.runtime.cli import main
from deeproot.runtime.context.event_log import EventLog

from .commands import DONE, READ, agent, start, the_log
from .scripted import Reply, ToolCall, scripted_server

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def stopped_in_command(workspace: Path) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """An agent in the middle of a command, and the server that it talks to."""
    command = f"echo x >> ran.txt; sleep 86400.{os.getpid()}9"
    script = (Reply("", [READ, ToolCall("run", {"command": command})]), DONE)
    with scripted_server(*script) as server, start(agent(workspace, server.url, "Go.")) as process:
        wait_for(workspace / "ran.txt")
        yield process, server
        if process.poll() is None:
            process.kill()


def test_ctrl_c_in_a_command(
    stopped_in_command: tuple[subprocess.Popen[str], Any], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, server = stopped_in_command
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"stopped; deeproot agent --workspace {workspace} --resume goes on from here" in err
    assert "Traceback" not in err
    assert not _alive(f"86400.{os.getpid()}9")
    with EventLog.open(the_log(workspace)) as log:
        at = read_progress(log)
        assert at.open
        assert list(at.ended) == ["c0-0", "c0-1"]
        assert at.ended["c0-1"].exit_code == 130
    assert main(["agent", "--workspace", str(workspace), "--resume"]) == 0
    assert "[interrupted by the user]" in str(server.requests[-1]["messages"])
    assert (workspace / "ran.txt").read_text() == "x\n", "not run again"


def test_sigterm_is_as_clean(stopped_in_command: tuple[subprocess.Popen[str], Any], workspace: Path) -> None:
    process, _ = stopped_in_command
    process.terminate()
    assert process.wait(30) == 130
    assert not _alive(f"86400.{os.getpid()}9")


def test_sigkill_and_resume(
    stopped_in_command: tuple[subprocess.Popen[str], Any], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, server = stopped_in_command
    process.kill()
    process.wait(30)
    for _ in range(100):
        if not _alive(f"86400.{os.getpid()}9"):
            break
        time.sleep(0.02)
    assert not _alive(f"86400.{os.getpid()}9"), "the command ended with the agent"
    assert main(["agent", "--workspace", str(workspace), "--resume"]) == 0
    assert "whether and how far it ran is not known" in str(server.requests[-1]["messages"])
    assert (workspace / "ran.txt").read_text() == "x\n"


def test_two_agents_at_one_log(
    stopped_in_command: tuple[subprocess.Popen[str], Any], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "--workspace", str(workspace), "--resume"]) == 1
    assert "another agent is at" in capsys.readouterr().err


def test_ctrl_c_while_the_model_speaks(workspace: Path) -> None:
    speaking, go_on = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        speaking.set()
        go_on.wait(30)

    with scripted_server(Reply("I speak", [READ], between=wait), DONE) as server:
        with start(agent(workspace, server.url, "Go.")) as process:
            assert speaking.wait(30)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        go_on.set()
        assert process.returncode == 130
        assert "stopped; " in err
        assert "Traceback" not in err
        with EventLog.open(the_log(workspace)) as log:
            assert read_progress(log).turns == 0
        first = server.bodies[0]
        assert main(["agent", "--workspace", str(workspace), "--resume"]) == 0
        assert server.bodies[1] == first


def wait_for(path: Path) -> None:
    for _ in range(1500):
        if path.exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never came")


def _alive(mark: str) -> bool:
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False
