"""`deeproot serve` as users start it: a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from deeproot.bench.chaos.server import free_port

from .harness import wait_until

COMMAND = str(Path(sys.executable).with_name("deeproot"))
TIME_LIMIT_S = 120.0


class ServeProcess:
    """A running `deeproot serve` and what it has written so far."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._process = subprocess.Popen(
            [COMMAND, "serve", "--port", str(port), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=lambda: self.stdout.extend(self._process.stdout or ())),
            threading.Thread(target=lambda: self.stderr.extend(self._process.stderr or ())),
        ]
        for reader in self._readers:
            reader.start()

    def wait_ready(self) -> None:
        """Return when it says that it is ready; fail if it ends before."""
        wait_until(lambda: bool(self.stdout) or self._process.poll() is not None, TIME_LIMIT_S)
        assert self.stdout, "".join(self.stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def wait(self, timeout_s: float) -> int:
        """The exit code; fails if the process has not ended by then."""
        code = self._process.wait(timeout_s)
        for reader in self._readers:
            reader.join()
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self.wait(10)


@contextlib.contextmanager
def serve(*arguments: str, ready: bool = True) -> Iterator[ServeProcess]:
    """Start a server on a free port, and see to it that it ends."""
    process = ServeProcess(free_port(), *arguments)
    try:
        if ready:
            process.wait_ready()
        yield process
    finally:
        process.kill()


def run_command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A `deeproot` command that is to end by itself."""
    return subprocess.run(
        [COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        env=_environment(),
        check=False,
    )


def _environment() -> dict[str, str]:
    # One thread: tests run beside others, and threads that wait for one another do badly on shared cores.
    return {**os.environ, "OMP_NUM_THREADS": "1"}
