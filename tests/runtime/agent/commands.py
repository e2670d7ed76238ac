"""`deeproot agent` in a process of its own, and its log."""

import signal
import subprocess
from pathlib import Path
from typing import Any

from ..server.process import COMMAND
from .scripted import Reply, ToolCall

READ = ToolCall("read", {"path": "a.py"})
DONE = Reply("It is \x1b[31mdone\x1b[0m.")


def agent(workspace: Path, url: str, *arguments: str) -> list[str]:
    return ["agent", "--workspace", str(workspace), "--base-url", url, *arguments]


def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background may have been told to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def the_log(workspace: Path, number: int = 1) -> Path:
    (folder,) = (workspace.parent / "home" / ".local" / "state" / "deeproot" / "agent").iterdir()
    assert folder.name.startswith("workspace-")
    return folder / f"{number:04}.db"
