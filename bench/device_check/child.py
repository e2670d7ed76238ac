"""One part of the check in a process of its own, so that a hang or a crash costs its time limit and nothing else."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PATIENCE = 10.0
"""Seconds that a killed process gets to be gone."""


def run_child(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `command --out FILE` for at most `seconds`; it and all that it started are killed then.

    Returns its `status` ("ok", "failed", "time limit"), the `seconds` that it took, what it wrote to FILE (JSON) as
    `result`, and otherwise the end of what it said as `error`.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        process = subprocess.Popen(
            [*command, "--out", str(out)],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
            status = "ok" if process.returncode == 0 and out.is_file() else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = _last_words(process)
            status = "time limit"
        report: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - started, 2)}
        if out.is_file():
            report["result"] = json.loads(out.read_text())
        if status != "ok":
            report["error"] = said[-2000:]
    return report


def _last_words(process: "subprocess.Popen[str]") -> str:
    """What a killed process had said. One that hangs in the driver may not end even so: it is left behind then."""
    try:
        return process.communicate(timeout=_PATIENCE)[0]
    except subprocess.TimeoutExpired:
        return ""
