"""The engine's process: `python -m deeproot.runtime.engine_process`, started by `process_transport`.

Its standard input carries one line, a `Start`, and then stays open for as long as the server's process lives: at its
end the engine leaves at once, whatever it is doing. No requests are lost by that, since nobody is left to hear of
them.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import zmq

from deeproot.engine.cpu_threads import choose_threads, cores_here
from deeproot.engine.grammar import TokenBytes
from deeproot.runtime.chat.assets import ModelAssets
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
    decode_start,
)
from deeproot.runtime.engine_setup import EngineSide, choose_device, load_scheduler
from deeproot.runtime.logs import set_up_logging
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.scheduler.answering import answer
from deeproot.scheduler.loop import EngineLoop, take_stats
from deeproot.scheduler.messages import TokenOutput
from deeproot.scheduler.scheduler import Scheduler
from deeproot.scheduler.watch import Watch

logger = logging.getLogger("deeproot.runtime.engine_process")  # the module itself is run as `__main__`

_MAX_UNREAD = 1000
"""Messages that the server may leave unread before the engine waits for it."""


Load = Callable[[EngineOptions, Callable[[], TokenBytes], Callable[[int, int], None]], EngineSide]
"""Makes an engine; see `load_scheduler`."""


def main(load: Load = load_scheduler) -> None:
    """Serve whoever started this process until they end it."""
    start = decode_start(sys.stdin.buffer.readline())
    threading.Thread(target=_leave_with_the_server, args=(start.folder,), daemon=True).start()
    # Ctrl-C in a terminal reaches both processes; the server decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_logging(start.log_level, start.log_format)
    context = zmq.Context()
    receiver = context.socket(zmq.PULL)
    receiver.bind(f"ipc://{start.folder}/to_engine")
    sender = context.socket(zmq.PUSH)
    sender.sndhwm = _MAX_UNREAD
    sender.connect(f"ipc://{start.folder}/from_engine")
    encoder = msgspec.msgpack.Encoder()

    def send(message: FromEngine) -> None:
        """Blocks while the server has too much to read; of this thread only."""
        sender.send(encoder.encode(message))

    try:
        engine = load(
            _with_threads(start.options),
            lambda: ModelAssets.load(start.options.model).token_bytes(),
            lambda done, total: send(Loading(done, total)),
        )
    except SetupError as error:
        send(CannotStart(str(error)))
        sys.exit(1)

    def emit(outputs: list[TokenOutput]) -> None:
        send(News(outputs, loop.stats()))

    loop = EngineLoop(engine.scheduler, emit)
    send(Ready(engine.info, take_stats(engine.scheduler)))
    threading.Thread(target=_receive, args=(receiver, loop, send), daemon=True).start()
    _watch(loop, start, context)
    loop.run()


def _with_threads(options: EngineOptions) -> EngineOptions:
    """The options with a number of threads; the process is the engine's own, so it is free to choose.

    Raises SetupError for a device that is not there."""
    if choose_device(options.device).type != "cpu":
        return options
    threads = choose_threads(options.threads, os.environ, cores_here())
    logger.info("threads: %d (%s)", threads.count, threads.why)
    return replace(options, threads=threads.count)


def _watch(loop: EngineLoop, start: Start, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    """Send pulses from a thread, and so over a socket, of their own."""
    socket = context.socket(zmq.PUSH)
    socket.sndhwm = 1
    socket.connect(f"ipc://{start.folder}/from_engine")
    encoder = msgspec.msgpack.Encoder()

    def send(age: float) -> None:
        # A server that does not read needs no pulse.
        with contextlib.suppress(zmq.Again):
            socket.send(encoder.encode(Pulse(age)), zmq.NOBLOCK)

    Watch(loop, start.stuck_after_s, send).start()


def _receive(receiver: "zmq.Socket[bytes]", loop: EngineLoop, send: Callable[[FromEngine], None]) -> None:
    """Hand what the server sends to the loop; an empty message ends it. `send` is for the loop's thread."""
    decoder = msgspec.msgpack.Decoder(ToEngine)
    while data := receiver.recv():
        message = decoder.decode(data)
        if isinstance(message, Ask):
            _ask(loop, message, send)
        else:
            loop.submit(message)
    loop.stop()


def _ask(loop: EngineLoop, ask: Ask, send: Callable[[FromEngine], None]) -> None:
    def say(scheduler: Scheduler) -> None:
        try:
            said = Answered(ask.number, answer(scheduler, ask.question))
        except Exception as error:  # the asker's, who is told; the loop goes on
            said = Answered(ask.number, None, f"{type(error).__name__}: {error}")
        send(said)

    loop.inspect(say)


def _leave_with_the_server(folder: Path) -> NoReturn:
    """Standard input ends when the server's process does, however that ended."""
    sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
