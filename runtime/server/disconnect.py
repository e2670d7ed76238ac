"""Work that ends when its client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deeproot.runtime.server.http_protocol import cut_off, direct_send

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed its connection."""


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, with ClientGone raised here, once the client leaves.

    The request's body must have been read.
    """
    return await _race(work, request.receive)


class EventStream(Response):
    """Server-sent events from a generator, which is closed at once when the client leaves or reads no more."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        patience_s: float,
        on_slow: Callable[[], None],
    ) -> None:
        """`first` has been taken from `events` already. patience_s: how long the client may leave the connection
        full; after that it is cut off, and `on_slow` called."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._patience_s = patience_s
        self._on_slow = on_slow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            with suppress(ClientGone):
                await _race(self._pump(scope, send), receive)

    async def _pump(self, scope: Scope, send: Send) -> None:
        patience = _Patience(self._patience_s)

        send_body = direct_send(scope, send)

        async def put(body: bytes, *, more: bool = True) -> None:
            patience.begin()
            await send_body({"type": "http.response.body", "body": body, "more_body": more})
            patience.end()

        try:
            # Never held up: so far the connection is empty.
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await put(self._first)
            async for event in self._events:
                await put(event)
            await put(b"", more=False)
        except asyncio.CancelledError:
            if not patience.is_over:
                raise
            self._on_slow()
            cut_off(scope)
            raise ClientGone from None
        finally:
            patience.close()


class _Patience:
    """Cancels the task that made it when something that it does takes too long: by one timer, whatever it does how often."""

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._timer = self._loop.call_later(seconds, self._look)
        self.is_over = False
        """Whether it has cancelled the task."""

    def begin(self) -> None:
        """What must not take too long begins."""
        self._began = self._loop.time()

    def end(self) -> None:
        """It has ended."""
        self._began = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._seconds
        if self._began is not None:
            left += self._began - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self.is_over = True
            self._task.cancel()


async def _race(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Run `work` until it ends or a disconnect arrives; nothing of it is left running either way."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
