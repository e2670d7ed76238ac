"""A process that runs chat templates and nothing else: `python -m deeproot.runtime.template_worker`.

Its standard input is a socket to who asks (`chat/template_frames`). Before it reads a byte it gives up what a template
that got out of the sandbox would want: it cannot open files or sockets, or take more memory than it is told. A template
that runs for too long ends the process by an alarm, also when nobody is there any more.
"""

import importlib
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from deeproot.runtime.chat import template_frames as frames
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template_programs import LocalProgram
from deeproot.runtime.context.span_programs import LocalSpans
from deeproot.runtime.context.spans import ChatMessage, Part

_MAX_PROGRAMS = 16
"""Compiled sources of each kind that are kept: a model has one or two."""

SpanFrame = tuple[str, int | None, bool, bool]


class _Clock:
    """The server's time, as it came with the request."""

    def __init__(self) -> None:
        self.time = datetime.min

    def now(self) -> datetime:
        return self.time


class Worker:
    """Answers one message after another."""

    def __init__(self) -> None:
        self._clock = clock = _Clock()

        def spans(source: str, special_texts: tuple[tuple[str, str], ...]) -> LocalSpans:
            return LocalSpans(source, dict(special_texts), clock.now)

        self._program = lru_cache(_MAX_PROGRAMS)(lambda source: LocalProgram(source, clock.now))
        self._spans = lru_cache(_MAX_PROGRAMS)(spans)

    def answer(self, frame: bytes) -> bytes:
        """A message: `{source}` asks for facts, `{source, variables, now}` for a rendering; with `special_texts`
        `{source}` asks whether it is valid, `{source, chat, now}` for the spans of a rendering (`context/span_processes`).
        """
        return frames.encode(msgspec.to_builtins(self._reply(frame)))

    def _reply(self, frame: bytes) -> frames.Reply:
        try:
            message = frames.decode(frame)
            if "now" in message:
                self._clock.time = datetime.fromisoformat(message["now"])
            if "special_texts" in message:
                return frames.Reply(spans=self._rendered_spans(message))
            program = self._program(message["source"])
            if "variables" not in message:
                return frames.Reply(facts=program.facts)
            return frames.Reply(text=program.render(message["variables"]))
        except TemplateError as error:
            return frames.Reply(error=str(error))
        except RecursionError:
            return frames.Reply(too_deep=True)
        except Exception as fault:  # memory, or a module that jinja2 has not imported while it could
            return frames.Reply(failed=f"{type(fault).__name__}: {fault}")

    def _rendered_spans(self, message: Mapping[str, Any]) -> list[SpanFrame]:
        program = self._spans(message["source"], tuple(message["special_texts"].items()))
        if "chat" not in message:
            return []
        chat = message["chat"]
        tools = None if chat["tools"] is None else program.prepare_tools(*chat["tools"])
        messages = [
            program.prepare(ChatMessage(role, tuple(Part(text, segment) for text, segment in parts), fields))
            for role, parts, fields in chat["messages"]
        ]
        spans = program.render(messages, tools, chat["add_generation_prompt"], chat["variables"])
        return [
            (text, segment if isinstance(segment, int) else None, literal, tracked)
            for text, segment, literal, tracked in spans
        ]


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
        chat: dict[str, Any] = {"messages": [], "tools": None, "add_generation_prompt": True, "variables": {}}
        worker.answer(frames.encode({"source": source, "special_texts": {}, "chat": chat, "now": now}))


def give_up_rights(max_memory: int) -> None:
    """No new file descriptors, no core dumps, and at most `max_memory` bytes of address space."""
    wanted = ((resource.RLIMIT_AS, max_memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 0))
    for limit, value in wanted:
        _, hard = resource.getrlimit(limit)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowest, lowest))


if __name__ == "__main__":
    main()
