"""uvicorn's HTTP, but that an application can cut a connection off."""

from collections.abc import Callable

from starlette.types import Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION = "deeproot.connection"


class CuttableProtocol(HttpToolsProtocol):
    """Puts into each request's scope how to end its connection without waiting for what is still to be sent, and what sends
    its answer without a way through middlewares."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"now": self.transport.abort}}

    def on_headers_complete(self) -> None:
        scope = self.scope
        super().on_headers_complete()
        scope["extensions"][_EXTENSION]["send"] = self.cycle.send


def cut_off(scope: Scope) -> None:
    """End a request's connection at once, if the server behind it can."""
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        now: Callable[[], None] = extension["now"]
        now()


def direct_send(scope: Scope, send: Send) -> Send:
    """What sends the body of an answer whose head has been sent by `send`: middlewares look at heads only, and each would
    take its share of the time of every streamed token."""
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is None:
        return send
    direct: Send = extension["send"]
    return direct
