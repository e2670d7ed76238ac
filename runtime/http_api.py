"""What every client of a server over HTTP needs: its address, its key, its streams."""

import json
from collections.abc import Iterable, Iterator
from typing import Any


def server_base(url: str) -> str:
    """A server's address without `/v1`, with which it may be given."""
    return url.rstrip("/").removesuffix("/v1")


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that shows a key; none without one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


class Lines:
    """Cuts a stream's bytes into lines at newlines only.

    httpx's own `iter_lines` also cuts at U+2028 and its like, which JSON may hold as they are.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that these bytes end, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]


def lines_of(parts: Iterable[bytes]) -> Iterator[str]:
    """The lines of a stream as they come; one without an end is not a line."""
    lines = Lines()
    for part in parts:
        yield from lines.feed(part)


def stream_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, errors among them, up to its end."""
    for line in lines:
        data = line.removeprefix("data: ")
        if data != line and data != "[DONE]":
            yield json.loads(data)
