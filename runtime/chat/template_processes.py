"""Chat templates in processes of their own, each rendering within a limit of time and memory.

A template comes with a model from somebody else, and what it renders comes from whoever sends a request. One that
hangs, takes all memory or breaks out of jinja2's sandbox would take the server along. Here it takes a process along
that holds no secrets and no requests, and the next rendering gets a new one.
"""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from deeproot.runtime.chat import template_frames as frames
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template_programs import TemplateFacts, template_fault

_MAX_MEMORY = 2**30
_MAX_FRAME = 256 * 2**20
"""Bytes of a conversation or a rendering: several times what the server's limit on bodies lets through."""
_START_S = 30.0
"""How long a new process may take before it answers, beside the limit of the rendering itself."""
_NO_RENDERING = "what its process has answered is no rendering, or too long"
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
"""Of the environment; the rest may hold secrets."""


class _Process:
    """One worker, kept alive from rendering to rendering."""

    def __init__(self, timeout_s: float) -> None:
        self.is_sound = True
        """Whether it can be asked again."""
        self._channel, theirs = socket.socketpair()
        with theirs:
            # The alarm is behind the server's own limit, which gives the better message.
            arguments = (str(timeout_s + 1.0), str(_MAX_MEMORY), str(_MAX_FRAME))
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", "-m", "deeproot.runtime.template_worker", *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: bytes, timeout_s: float) -> frames.Reply:
        """Raises TimeoutError, Closed, ValueError; the process is of no use then."""
        deadline = time.monotonic() + timeout_s
        self._channel.settimeout(timeout_s)
        frames.send(self._channel, message)
        return frames.decode_reply(frames.receive(self._channel, _MAX_FRAME, deadline))

    def end(self) -> None:
        self.is_sound = False
        self._channel.close()
        self._process.kill()
        self._process.wait()


class TemplateProcesses:
    """`Templates` behind processes that are started when they are needed. May be used by several threads."""

    def __init__(self, timeout_s: float, max_processes: int = 2) -> None:
        """timeout_s: of one rendering. max_processes: so many renderings at a time; others wait for their turn."""
        self._timeout_s = timeout_s
        self._free: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(max_processes):
            self._free.put(None)
        self._lock = threading.Lock()
        self._all: set[_Process] = set()
        # Nobody need close them: they also end when this is collected, or Python exits.
        weakref.finalize(self, _end_all, self._all)

    def compile(self, source: str, now: Callable[[], datetime]) -> "RemoteProgram":
        return RemoteProgram(self, source, now)

    def ask(self, message: Mapping[str, Any]) -> frames.Reply:
        """The answer of a process to `message`. Raises TemplateError, RecursionError."""
        frame = frames.encode(message)
        if len(frame) > _MAX_FRAME:
            raise TemplateError("the conversation is too large for a chat template; shorten it")
        process = self._free.get()
        try:
            reply = None
            if process is not None:
                # Somebody else may have ended it while it had nothing to do.
                with contextlib.suppress(frames.Closed):
                    reply = self._asked(process, frame, self._timeout_s)
            if reply is None:
                process = self._start()
                reply = self._asked(process, frame, self._timeout_s + _START_S)
        except (TimeoutError, frames.Closed, ValueError) as error:
            raise template_fault(self._why(error)) from None
        finally:
            self._free.put(process if process is not None and process.is_sound else None)
        return _checked(reply)

    def _asked(self, process: _Process, frame: bytes, timeout_s: float) -> frames.Reply:
        """Raises TimeoutError, Closed, ValueError; the process is gone then."""
        try:
            return process.ask(frame, timeout_s)
        except (TimeoutError, frames.Closed, ValueError):
            process.end()
            with self._lock:
                self._all.discard(process)
            raise

    @property
    def pids(self) -> list[int]:
        """Of the processes that live."""
        with self._lock:
            return [process.pid for process in self._all]

    def close(self) -> None:
        """End all processes. Whoever renders afterwards gets a new one."""
        with self._lock:
            _end_all(self._all)

    def _start(self) -> _Process:
        process = _Process(self._timeout_s)
        with self._lock:
            self._all.add(process)
        return process

    def _why(self, error: Exception) -> str:
        limit = f"its limit of {self._timeout_s:g} s (of a server: --chat-template-timeout)"
        if isinstance(error, TimeoutError):
            return f"it took longer than {limit}"
        if isinstance(error, frames.Closed):
            return f"its process has ended: it took too much memory, or longer than {limit}"
        return _NO_RENDERING


class RemoteProgram:
    """A template that runs in a process of its own."""

    def __init__(self, processes: TemplateProcesses, source: str, now: Callable[[], datetime]) -> None:
        self._processes = processes
        self._source = source
        self._now = now
        facts = processes.ask({"source": source}).facts
        if facts is None:
            raise no_answer()
        self.facts: TemplateFacts = facts

    def render(self, variables: Mapping[str, Any]) -> str:
        message = {"source": self._source, "variables": dict(variables), "now": self._now().isoformat()}
        text = self._processes.ask(message).text
        if text is None:
            raise no_answer()
        return text


def _end_all(processes: set[_Process]) -> None:
    while processes:
        processes.pop().end()


def no_answer() -> TemplateError:
    """The error of a template whose process answers something else than it was asked for."""
    return template_fault(_NO_RENDERING)


def _checked(reply: frames.Reply) -> frames.Reply:
    if reply.error is not None:
        raise TemplateError(reply.error)
    if reply.failed is not None:
        raise template_fault(reply.failed)
    if reply.too_deep:
        raise RecursionError
    return reply
