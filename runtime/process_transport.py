"""The engine in a process of its own, behind `EngineTransport`; started anew when it dies."""

import asyncio
import itertools
import logging
import math
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from deeproot.runtime.client import EngineUnavailable
from deeproot.runtime.engine_child import how_it_ended, spawn, wait_for_death
from deeproot.runtime.engine_messages import (
    Answered,
    Ask,
    CannotStart,
    FromEngine,
    Loading,
    News,
    Pulse,
    Ready,
    Start,
    ToEngine,
)
from deeproot.runtime.engine_transport import EngineEvents
from deeproot.runtime.news_reader import NewsReader
from deeproot.runtime.options import EngineOptions, LogFormat
from deeproot.scheduler.questions import Answer, Question
from deeproot.scheduler.stats import PULSE_S, EngineStats

logger = logging.getLogger(__name__)

ENGINE_MODULE = "deeproot.runtime.engine_process"
_STEADY_S = 60.0
"""An engine that has lived as long is started anew at once; one that died sooner, after a growing pause."""
_LONGEST_PAUSE_S = 30.0
_LAST_WORDS_MS = 50
"""How long to wait for what an engine said before it died."""


@dataclass(slots=True)
class _Life:
    """What one engine has said about itself."""

    was_ready: bool = False
    cannot_start: str | None = None
    named_silent: bool = False


class ProcessTransport:
    """Starts the engine's process, carries messages, and starts it anew after it has died.

    Messages to the engine are few and bounded by what the client takes; a slow reader of the engine's news makes the
    engine wait.
    """

    def __init__(
        self,
        options: EngineOptions,
        log_level: str,
        log_format: LogFormat,
        on_loading: Callable[[int, int], None],
        stuck_after_s: float = 60.0,
        engine_module: str = ENGINE_MODULE,
    ) -> None:
        """`on_loading`: told bytes of weights done and bytes in all, in the event loop. `stuck_after_s`: a
        step that takes longer, or an engine that is silent for longer, is named in the log. `engine_module`: what the
        process runs."""
        self._engine_module = engine_module
        self._options = options
        self._log_level = log_level
        self._log_format = log_format
        self._on_loading = on_loading
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._context = zmq.Context()
        self._stats: EngineStats | None = None
        self._stuck_after_s = stuck_after_s
        self._pulse = Pulse(0.0)
        self._heard = math.inf
        """When the engine last said anything, by `time.monotonic`; infinite while it is not ready."""
        self._closing = threading.Event()
        self._numbers = itertools.count()
        # Guards the four below, which change when an engine dies.
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Answer]] = {}
        """The questions that the living engine has not answered yet."""
        self._sender: zmq.Socket[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: NewsReader | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._thread: threading.Thread | None = None

    def start(self, events: EngineEvents) -> None:
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(
            target=self._supervise, args=(events,), name="deeproot-engine-watch", daemon=True
        )
        self._thread.start()

    def submit(self, message: ToEngine) -> None:
        self._send(self._encoder.encode(message))

    def ask(self, question: Question) -> "Future[Answer]":
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # whoever gives up waiting just does not look
        number = next(self._numbers)
        data = self._encoder.encode(Ask(number, question))
        with self._lock:
            if self._sender is None:
                future.set_exception(
                    EngineUnavailable("There is no engine to ask: try again in a few seconds.")
                )
            else:
                self._asked[number] = future
                self._sender.send(data)
        return future

    def stats(self) -> EngineStats | None:
        return self._stats

    def step_age_s(self) -> float:
        """How long the engine's step has been running, as far as it has told."""
        return self._pulse.step_age_s

    def silence_s(self) -> float:
        """For how long the engine has said nothing; a sound one speaks every second."""
        return max(0.0, time.monotonic() - self._heard)

    def close(self, timeout: float | None) -> bool:
        self._closing.set()
        with self._lock:
            process, reader = self._process, self._reader
        if reader is not None and threading.get_ident() == self._loop_thread:
            reader.end()  # the loop stands still until this returns, so it could not be asked to let go
        stopped = True
        if process is not None:
            try:
                self._send(b"")
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                stopped = False
                process.kill()
        if self._thread is not None:
            self._thread.join(timeout)
        return stopped

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def _send(self, data: bytes) -> None:
        """Send if there is an engine. If there is none, the client has been or will be told so."""
        with self._lock:
            if self._sender is not None:
                self._sender.send(data)

    def _supervise(self, events: EngineEvents) -> None:
        quick_deaths, ever_ready = 0, False
        while not self._closing.is_set():
            born = time.monotonic()
            try:
                was_ready, reason = self._run_one(events)
            except OSError as error:  # no room for sockets, or no process to be had
                was_ready, reason = False, f"The engine's process cannot be started ({error})"
            if self._closing.is_set():
                return
            ever_ready = ever_ready or was_ready
            if not ever_ready:
                # It never worked: what is wrong will not mend itself.
                events.on_cannot_start(reason)
                return
            events.on_down(f"{reason}; it is being started anew: try again in a few seconds.")
            quick_deaths = 0 if time.monotonic() - born > _STEADY_S else quick_deaths + 1
            pause = min(_LONGEST_PAUSE_S, 2.0 ** (quick_deaths - 2)) if quick_deaths > 1 else 0.0
            logger.error("%s; starting it anew in %g s", reason, pause)
            self._closing.wait(pause)

    def _run_one(self, events: EngineEvents) -> tuple[bool, str]:
        """One life of the engine: (whether it became ready, why it ended)."""
        folder = Path(tempfile.mkdtemp(prefix="deeproot-"))
        sender, receiver = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        try:
            with closing(sender), closing(receiver):
                sender.linger = 0
                sender.sndhwm = 0  # Sending never waits: the client bounds what is in flight.
                # Connected, not bound: then it takes messages before the engine listens.
                sender.connect(f"ipc://{folder}/to_engine")
                receiver.bind(f"ipc://{folder}/from_engine")
                process = spawn(
                    self._engine_module,
                    Start(folder, self._options, self._log_level, self._log_format, self._stuck_after_s),
                )
                life = _Life()
                assert self._loop is not None
                reader = NewsReader(self._loop, receiver, lambda data: self._take(data, life, events))
                with self._lock:
                    self._process, self._sender, self._reader = process, sender, reader
                try:
                    if self._closing.is_set():  # close() may have looked for a process just before
                        return False, "The server is shutting down."
                    reader.start()
                    try:
                        wait_for_death(process, PULSE_S, lambda: self._name_silence(process.pid, life))
                    finally:
                        reader.release()
                    while receiver.poll(_LAST_WORDS_MS):
                        self._take(receiver.recv(), life, events)
                    reason = (
                        life.cannot_start
                        or f"The engine has ended unexpectedly ({how_it_ended(process.wait())})"
                    )
                    return life.was_ready, reason
                finally:
                    with self._lock:
                        self._process = self._sender = self._reader = None
                        unanswered, self._asked = self._asked, {}
                    for future in unanswered.values():
                        future.set_exception(EngineUnavailable("The engine has ended before it answered."))
                    self._stats = None
                    self._pulse, self._heard = Pulse(0.0), math.inf
                    process.kill()
                    process.wait()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _name_silence(self, pid: int, life: _Life) -> None:
        """Say once that the engine is silent."""
        silence = self.silence_s()
        if silence < self._stuck_after_s:
            life.named_silent = False
        elif not life.named_silent:
            life.named_silent = True
            logger.error(
                "the engine (process %d) has said nothing for %.0f s: it is stopped, starved of memory, or stuck outside "
                "Python. If it stays so, end it by kill -9 %d: requests in flight then fail with an error, and a new "
                "engine is started",
                pid,
                silence,
                pid,
            )

    def _take(self, data: bytes, life: _Life, events: EngineEvents) -> None:
        """Act on a message of the engine's."""
        message: FromEngine = self._decoder.decode(data)
        if isinstance(message, Loading):
            self._on_loading(message.done, message.total)
            return
        if isinstance(message, CannotStart):
            life.cannot_start = message.reason
            return
        self._heard = time.monotonic()
        if isinstance(message, News):
            self._stats = message.stats
            events.on_outputs(message.outputs)
        elif isinstance(message, Pulse):
            self._pulse = message
        elif isinstance(message, Ready):
            life.was_ready = True
            self._stats = message.stats
            events.on_up(message.info)
        else:
            self._answer(message)

    def _answer(self, message: Answered) -> None:
        with self._lock:
            future = self._asked.pop(message.number)
        if message.answer is None:
            future.set_exception(RuntimeError(message.error))
        else:
            future.set_result(message.answer)
