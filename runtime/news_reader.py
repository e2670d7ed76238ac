"""A ZeroMQ socket that an event loop reads itself: no thread stands between the engine's words and those who wait for them."""

import asyncio
import logging
import threading
from collections.abc import Callable

import zmq

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
"""How often it is looked whether a loop that should let go of the socket is still there."""


class NewsReader:
    """Reads a socket in an event loop from `start` until `release`; then it is the caller's again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, socket: "zmq.Socket[bytes]", take: Callable[[bytes], None]
    ) -> None:
        """`take`: told every message, in the loop."""
        self._loop = loop
        self._socket = socket
        self._take = take
        self._descriptor: int | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to read; from any thread."""
        self._in_loop(self._begin)

    def release(self) -> None:
        """Return when the loop uses the socket no more; from another thread than the loop's."""
        self._in_loop(self.end)
        # A loop that never runs again cannot let go, and does not read either.
        while not self._ended.wait(_LOOK_S) and not self._loop.is_closed():
            pass

    def end(self) -> None:
        """As `release`, from the loop's thread."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = None
        self._ended.set()

    def _in_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # closed
            self._ended.set()

    def _begin(self) -> None:
        if self._ended.is_set():
            return
        descriptor = self._socket.FD
        assert isinstance(descriptor, int)
        self._descriptor = descriptor
        self._loop.add_reader(descriptor, self._read)
        self._read()

    def _read(self) -> None:
        # The descriptor says only that something is new since the last look, so everything has to be read.
        while not self._ended.is_set():
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(data)
            except Exception:
                logger.exception("what the engine said could not be taken")
