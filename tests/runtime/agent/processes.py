"""Sessions in processes of their own, to be killed: one process that has loaded everything forks each of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deeproot.runtime.agent.jail import Jail
from deeproot.runtime.agent.setup import Settings, begin, build
from deeproot.runtime.agent.shell import Shell, probe
from deeproot.runtime.agent.stream import Server
from deeproot.runtime.agent.view import PlainView, Tally
from deeproot.runtime.context.event_log import EventLog


class Sessions:
    """The test's side."""

    def __enter__(self) -> Self:
        self._parent = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._child = 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(10)

    def run(self, folder: Path, url: str) -> None:
        """Begin a run over `folder/workspace`, logged to `folder/run.db`, and return when its process is gone."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        values = {
            "workspace": str((folder / "workspace").resolve()),
            "base_url": url,
            "log": str(folder / "run.db"),
        }
        self._parent.stdin.write(json.dumps(values) + "\n")
        self._parent.stdin.flush()
        self._child = int(self._parent.stdout.readline())
        self._parent.stdout.readline()
        self._child = 0

    def kill(self) -> None:
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)


def main() -> None:
    """Fork a session for each line of the input; print its process, and a line when that has ended."""
    use, _ = asyncio.run(probe())
    for line in sys.stdin:
        child = os.fork()
        if not child:
            with suppress(BaseException):
                asyncio.run(_session(json.loads(line), use))
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


async def _session(values: dict[str, Any], use: frozenset[str]) -> None:
    settings = Settings(
        workspace=values["workspace"],
        model="scripted",
        base_url=values["base_url"],
        request={"max_tokens": 500},
        budget=24_000,
    )
    jail = Jail(settings.workspace)
    with EventLog.open(values["log"], clock=lambda: 1_760_000_000_000_000_000) as log:
        begin(log, settings, "Do it.", constraints=["Never edit vendor/."])
        session = build(
            log,
            settings,
            jail=jail,
            shell=Shell(jail.root, use),
            server=Server(settings.base_url),
            watcher=PlainView(sys.stderr, Tally()),
        )
        await session.run()


if __name__ == "__main__":
    main()
