"""The commands of the `run` tool: confined, with limits of time and output, and gone when they end."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deeproot.runtime.agent.confined import FILES, NO_NETWORK, PROCESSES
from deeproot.runtime.agent.uncancelled import uncancelled

_SCRIPT = str(Path(__file__).with_name("confined.py"))
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/proc",
    "/sys/devices/system/cpu", "/sys/fs/cgroup", "/etc/alternatives", "/etc/ca-certificates", "/etc/ssl", "/etc/pki",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/hosts", "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/gitconfig", "/etc/inputrc", "/etc/terminfo",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CHUNK = 1 << 16
_LAST_WORDS_S = 1.0
TIMED_OUT, INTERRUPTED = 124, 130


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one command. `keep_bytes` of its output are kept, half from its start and half from its end; one that writes
    more than `kill_bytes` is killed."""

    seconds: float = 120.0
    keep_bytes: int = 1 << 20
    kill_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    """`output`: standard output and error as they came, what was left out marked. `why`: why it was killed, or empty."""

    output: bytes
    exit_code: int
    why: str = ""


class Shell:
    """Runs commands of one workspace. `use`: what confines them, as `probe` found it; empty: nothing does.

    `reads`: further files and folders that commands may read. `env`: further variables. Use from the main thread's event
    loop: the commands die with the thread that starts them. `close` removes the private /tmp.
    """

    def __init__(
        self,
        root: str,
        use: frozenset[str],
        *,
        limits: Limits | None = None,
        reads: Sequence[str] = (),
        env: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.limits = limits or Limits()
        self._root = root
        self._use = use
        self._private = tempfile.mkdtemp(prefix="deeproot-agent-")
        home = os.path.join(self._private, "home")
        os.mkdir(home)
        self._reads = [*_SYSTEM, *programs(root), *map(os.path.realpath, reads)]
        inner = "/tmp" if PROCESSES in use else self._private
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": f"{inner}/home",
            "TMPDIR": inner,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **dict(env),
        }

    def close(self) -> None:
        shutil.rmtree(self._private, ignore_errors=True)

    async def run(self, command: str, seconds: float | None = None) -> Ran:
        """Run a shell command in the workspace; all that it started is gone when this returns.

        If the task is cancelled, the command is killed and what it had written is returned all the same, with INTERRUPTED
        as its code.
        """
        seconds = self.limits.seconds if seconds is None else min(seconds, self.limits.seconds)
        # A pipe of its own: asyncio takes a process for running as long as somebody holds one of asyncio's pipes.
        ours, theirs = os.pipe()
        try:
            starting = asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", _SCRIPT, self._spec(command),
                stdin=asyncio.subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=self._env, start_new_session=True,
            )  # fmt: skip
            process, cancelled = await uncancelled(starting)
        finally:
            os.close(theirs)
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(ours, "rb", buffering=0)
        )
        kept = _Kept(self.limits.keep_bytes)
        why, code = "", 0
        try:
            if cancelled:
                raise asyncio.CancelledError
            async with asyncio.timeout(seconds):
                code = await self._watch(process, stream, kept)
        except TimeoutError:
            why, code = f"killed after {seconds:g} s, the time limit", TIMED_OUT
        except asyncio.CancelledError:
            why, code = "interrupted by the user", INTERRUPTED
        except _FloodError:
            why, code = f"killed after {self.limits.kill_bytes} bytes of output", TIMED_OUT
        finally:
            # By its group: the leader may have ended and left others. Those that left the group die with its namespace.
            _kill_group(process.pid)
            await uncancelled(process.wait())
            transport.close()
        return Ran(kept.text(), code, why)

    async def _watch(
        self, process: asyncio.subprocess.Process, stream: asyncio.StreamReader, kept: "_Kept"
    ) -> int:
        """The exit code. What still holds the output when the command has ended is killed, not waited for."""
        draining = asyncio.create_task(self._drain(stream, kept))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({draining, ended}, return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                draining.result()
            else:
                _kill_group(process.pid)
                await asyncio.wait({draining}, timeout=_LAST_WORDS_S)
            return await ended
        finally:
            draining.cancel()
            ended.cancel()

    async def _drain(self, stream: asyncio.StreamReader, kept: "_Kept") -> None:
        while piece := await stream.read(_CHUNK):
            kept.add(piece)
            if kept.total > self.limits.kill_bytes:
                raise _FloodError

    def _spec(self, command: str) -> str:
        spec = {
            "root": self._root,
            "private": self._private,
            "reads": self._reads,
            "writes": _DEVICES,
            "use": sorted(self._use),
            "argv": ["/bin/sh" if not os.path.exists("/bin/bash") else "/bin/bash", "-c", command],
        }
        return json.dumps(spec)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class _FloodError(Exception):
    """The command wrote too much."""


class _Kept:
    """The start and the end of a stream, and how long it was."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, piece: bytes) -> None:
        self.total += len(piece)
        room = self._half - len(self._head)
        self._head += piece[:room] if room > 0 else b""
        self._tail += piece[max(0, room) :]
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    def text(self) -> bytes:
        tail = bytes(self._tail[-self._half :])
        left = self.total - len(self._head) - len(tail)
        return bytes(self._head) + (f"\n[{left} bytes left out]\n".encode() if left else b"") + tail


def programs(root: str) -> list[str]:
    """Folders that programs on PATH need: theirs, and the installation around a `bin`. Neither counts that is a home or the
    workspace, or holds one."""
    found = []
    kept = [os.path.realpath(Path.home()), os.path.realpath(root)]
    for folder in [
        *os.environ.get("PATH", os.defpath).split(os.pathsep),
        os.path.join(sys.base_prefix, "bin"),
    ]:
        real = os.path.realpath(folder)
        around = os.path.dirname(real) if os.path.basename(real) in ("bin", "sbin") else real
        fitting = [path for path in (around, real) if not any(_holds(path, home) for home in kept)]
        if folder and os.path.isdir(real) and fitting:
            found.append(fitting[0])
    return list(dict.fromkeys(found))


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


async def probe(*, network: bool = False) -> tuple[frozenset[str], tuple[str, ...]]:
    """What can confine commands here, and a line for each thing that cannot, for the user.

    `network`: commands may use it.
    """
    wanted = (FILES, PROCESSES) if network else (FILES, PROCESSES, NO_NETWORK)
    notes = [] if not network else ["run: commands have the network, as asked"]
    whole = await _works(frozenset(wanted))
    if not whole:
        return frozenset(wanted), tuple(notes)
    files = await _works(frozenset(wanted) - {PROCESSES})
    if not files:
        notes.append(
            f"run: no namespaces here ({whole}): daemons may outlive their command, and permissions of files elsewhere"
            " can be changed"
        )
        if not network:
            notes.append("run: only TCP is kept from the network, as far as this kernel can")
        return frozenset(wanted) - {PROCESSES}, tuple(notes)
    notes.append(f"run: commands cannot be kept to the workspace here ({files})")
    return frozenset(), tuple(notes)


async def _works(use: frozenset[str]) -> str:
    """Empty, or why not."""
    with tempfile.TemporaryDirectory(prefix="deeproot-agent-") as root:
        shell = Shell(root, use, limits=Limits(seconds=10))
        try:
            ran = await shell.run("exit 0")
        finally:
            shell.close()
    if ran.exit_code == 0:
        return ""
    said = ran.output.decode("utf-8", "replace").strip()
    return said.removeprefix("cannot confine the command: ") or f"exit code {ran.exit_code}"
