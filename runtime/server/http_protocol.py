"""uvicorn's HTTP, but that an application can cut a connection off."""

from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION = "deeproot.cut_off"


class CuttableProtocol(HttpToolsProtocol):
    """Puts into each request's scope how to end its connection without waiting for what is still to be sent."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"now": self.transport.abort}}


def cut_off(scope: Scope) -> None:
    """End a request's connection at once, if the server behind it can."""
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        now: Callable[[], None] = extension["now"]
        now()
