"""A process that runs chat templates and nothing else: `python -m deeproot.runtime.chat.template_worker`.

Its standard input is a socket to the server (`template_frames`). Before it reads a byte it gives up what a template
that got out of the sandbox would want: it cannot open files or sockets, or take more memory than it is told. A template that runs for too long ends the process by an alarm, also when the server is gone by then.
"""

import importlib
import resource
import signal
import socket
import sys
from datetime import datetime

import msgspec

from deeproot.runtime.chat import template_frames as frames
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template_programs import LocalProgram, LocalTemplates

_MAX_PROGRAMS = 16
"""Compiled sources that are kept: a model has one or two."""


class _Clock:
    """The server's time, as it came with the request."""

    def __init__(self) -> None:
        self.time = datetime.min

    def now(self) -> datetime:
        return self.time


class Worker:
    """Answers one message after another."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self._programs: dict[str, LocalProgram] = {}

    def answer(self, frame: bytes) -> bytes:
        """A message: `{source}` asks for facts, `{source, variables, now}` for a rendering."""
        return frames.encode(msgspec.to_builtins(self._reply(frame)))

    def _reply(self, frame: bytes) -> frames.Reply:
        try:
            message = frames.decode(frame)
            program = self._program(message["source"])
            if "variables" not in message:
                return frames.Reply(facts=program.facts)
            self._clock.time = datetime.fromisoformat(message["now"])
            return frames.Reply(text=program.render(message["variables"]))
        except TemplateError as error:
            return frames.Reply(error=str(error))
        except RecursionError:
            return frames.Reply(too_deep=True)
        except Exception as fault:  # memory, or a module that jinja2 has not imported while it could
            return frames.Reply(failed=f"{type(fault).__name__}: {fault}")

    def _program(self, source: str) -> LocalProgram:
        if source not in self._programs:
            if len(self._programs) >= _MAX_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[source] = LocalTemplates().compile(source, self._clock.now)
        return self._programs[source]


def main() -> None:
    alarm_s, max_memory, max_frame = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # Ctrl-C in a terminal reaches every process of the server; the server decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=0)
    worker = Worker()
    import_everything(worker)
    give_up_rights(max_memory)
    while True:
        try:
            frame = frames.receive(channel, max_frame)
        except frames.Closed:
            return
        # By default the signal ends a process wherever it is, in C code too.
        signal.setitimer(signal.ITIMER_REAL, alarm_s)
        reply = worker.answer(frame)
        signal.setitimer(signal.ITIMER_REAL, 0)
        frames.send(channel, reply)


def import_everything(worker: Worker) -> None:
    """Have jinja2 and Python import what they import at first use: later no file can be opened any more."""
    for module in ("encodings.unicode_escape", "encodings.idna", "jinja2.debug", "pprint", "random"):
        importlib.import_module(module)
    now = datetime(2024, 2, 29).isoformat()
    for source in (
        "{{ [1] | tojson }}{{ strftime_now('%d %b') | upper }}{{ '\\u00e9' }}",
        "{% for %}",
        "{{ 1 / 0 }}",
    ):
        worker.answer(frames.encode({"source": source, "variables": {}, "now": now}))


def give_up_rights(max_memory: int) -> None:
    """No new file descriptors, no core dumps, and at most `max_memory` bytes of address space."""
    wanted = ((resource.RLIMIT_AS, max_memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 0))
    for limit, value in wanted:
        _, hard = resource.getrlimit(limit)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowest, lowest))


if __name__ == "__main__":
    main()
