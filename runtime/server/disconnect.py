"""Work that ends when its client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from deeproot.runtime.server.http_protocol import cut_off

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
        async def put(message: Message) -> None:
            try:
                async with asyncio.timeout(self._patience_s):
                    await send(message)
            except TimeoutError:
                self._on_slow()
                cut_off(scope)
                raise ClientGone from None

        await put({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await put({"type": "http.response.body", "body": self._first, "more_body": True})
        async for event in self._events:
            await put({"type": "http.response.body", "body": event, "more_body": True})
        await put({"type": "http.response.body", "body": b"", "more_body": False})


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
