"""A server under test: a process of its own, its engine, and what both take."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from deeproot.runtime.process_transport import ENGINE_MODULE

SERVE = (str(Path(sys.executable).with_name("deeproot")), "serve")
_START_S = 300.0


class Server:
    """A running `deeproot serve`, or another program that serves as it does."""

    def __init__(
        self,
        flags: Sequence[str],
        log: Path,
        program: Sequence[str] = SERVE,
        engine_module: str = ENGINE_MODULE,
    ) -> None:
        """log: gets what the server writes. engine_module: what its engine's process runs."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._engine_module = engine_module
        command = (*program, "--port", str(self.port), *flags)
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        self._log = log

    def wait_ready(self, timeout_s: float = _START_S) -> None:
        """Return when it serves; RuntimeError, with its log, if it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the server is not ready: {self._log.read_text(errors='replace')[-2000:]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def engines(self) -> list[int]:
        return self._children(self._engine_module)

    def template_processes(self) -> list[int]:
        return self._children("deeproot.runtime.template_worker")

    def metrics(self) -> dict[str, float]:
        """Of /metrics, by name and labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def resident(self) -> tuple[int, int]:
        """Bytes that the server's process and its engine hold now; 0 for one that is not there."""
        return resident_bytes(self.pid), sum(map(resident_bytes, self.engines()))

    def end(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _children(self, module: str) -> list[int]:
        found: set[int] = set()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    found |= set(map(int, (task / "children").read_text().split()))
        return sorted(child for child in found if module.encode() in _command_of(child))


@contextlib.contextmanager
def running(
    flags: Sequence[str],
    program: Sequence[str] = SERVE,
    engine_module: str = ENGINE_MODULE,
    log: Path | None = None,
) -> Iterator[Server]:
    """A server that is ready, and ended afterwards. log: gets what it writes, and stays."""
    with tempfile.TemporaryDirectory(prefix="deeproot-chaos-") as folder:
        server = Server(flags, log or Path(folder) / "log", program, engine_module)
        try:
            server.wait_ready()
            yield server
        finally:
            if server.lives:
                server.end()


def resident_bytes(pid: int) -> int:
    """0 if there is no such process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
