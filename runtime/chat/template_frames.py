"""What a server and its template processes say to each other: JSON behind its length.

JSON of the standard library, since conversations may hold what other formats refuse: lone surrogates, and numbers of
any size. Nothing that a template process sends is ever executed or unpickled.
"""

import json
import socket
import struct
import time
from typing import Any

import msgspec

from deeproot.runtime.chat.template_programs import TemplateFacts

_LENGTH = struct.Struct("<Q")


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of these."""

    facts: TemplateFacts | None = None
    text: str | None = None
    spans: list[tuple[str, int | None, bool, bool]] | None = None
    """A rendering with the origin of its text: text, segment, literal, tracked (`context/spans.Span`)."""
    error: str | None = None
    """A sentence for the user: the template is not valid, refuses the conversation, or failed on it."""
    failed: str | None = None
    """What went wrong otherwise."""
    too_deep: bool = False


class Closed(Exception):
    """The other side has gone."""


def encode(message: Any) -> bytes:
    """Raises RecursionError for what is nested too deeply."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(frame: bytes) -> Any:
    """Raises RecursionError, ValueError."""
    return json.loads(frame.decode("utf-8", "surrogatepass"))


def decode_reply(frame: bytes) -> Reply:
    """Raises ValueError."""
    try:
        return msgspec.convert(decode(frame), Reply)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"not a reply: {error}") from None


def send(channel: socket.socket, frame: bytes) -> None:
    """Send a frame whole. Raises TimeoutError after the socket's time, Closed if nobody is there."""
    try:
        channel.sendall(_LENGTH.pack(len(frame)))
        channel.sendall(frame)
    except TimeoutError:
        raise
    except OSError as error:
        raise Closed from error


def receive(channel: socket.socket, max_bytes: int, deadline: float | None = None) -> bytes:
    """The next frame. deadline: of `time.monotonic`; None waits for as long as it takes.

    Raises TimeoutError, Closed, and ValueError for a frame of more than `max_bytes`.
    """
    (size,) = _LENGTH.unpack(_receive(channel, _LENGTH.size, deadline))
    if size > max_bytes:
        raise ValueError(f"a frame of {size} bytes")
    return _receive(channel, size, deadline)


def _receive(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            channel.settimeout(left)
        try:
            got = channel.recv_into(view[done:])
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed from error
        if not got:
            raise Closed
        done += got
    return bytes(data)
