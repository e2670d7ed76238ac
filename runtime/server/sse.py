"""Server-sent events."""

import msgspec

DONE = b"data: [DONE]\n\n"


def event(content: object) -> bytes:
    """One event with `content` as JSON."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def raw_event(data: bytes) -> bytes:
    """One event with data that is JSON already, on one line."""
    return b"data: " + data + b"\n\n"
