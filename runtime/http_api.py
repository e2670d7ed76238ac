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


def stream_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, errors among them, up to its end."""
    for line in lines:
        data = line.removeprefix("data: ")
        if data != line and data != "[DONE]":
            yield json.loads(data)
