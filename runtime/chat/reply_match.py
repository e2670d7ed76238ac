"""Whether a reply that a client sent back is the one that the model wrote."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from deeproot.runtime.chat.reply_events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    CallTruncated,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
)

ReadReply = Callable[[str], list[ReplyEvent]]
"""A reply's text to its events, with an empty id for every call that the format gives none."""


def same_reply(sent: str, written: str, read: ReadReply, marks: Sequence[str]) -> bool:
    """Whether they differ at most in white space at the end, in white space around reasoning and calls, and in how
    the arguments of calls are written: order of keys, spaces, escapes, 1.0 for 1.

    Arguments that are not strict JSON, or name a key twice, have to be the same to the letter, and so have the
    `marks`, which must come equally often.
    """
    if sent == written:
        return True
    if any(sent.count(mark) != written.count(mark) for mark in marks):
        return False
    return _normal(read(sent)) == _normal(read(written))


def _normal(events: list[ReplyEvent]) -> list[tuple[str, str]]:
    """The reply's parts in order, each in one spelling."""
    parts: list[tuple[str, str]] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                parts.append(("reasoning", _taken(parts, "reasoning") + text))
            case ContentDelta(text):
                parts.append(("text", _taken(parts, "text") + text))
            case CallStart(_, call_id, name):
                parts.append((f"call {call_id}", name))
            case ArgumentsDelta(_, text):
                parts.append(("arguments", _one_spelling(text)))
            case CallTruncated():
                parts.append(("truncated", "call"))
            case CallEnd():
                pass
    trimmed = [(kind, text.rstrip()) for kind, text in parts]
    return [(kind, text) for kind, text in trimmed if text]


def _taken(parts: list[tuple[str, str]], kind: str) -> str:
    """The text of the last part, which is taken away, if it is of this kind."""
    return parts.pop()[1] if parts and parts[-1][0] == kind else ""


def _one_spelling(source: str) -> str:
    try:
        value = json.loads(source, object_pairs_hook=_without_twins, parse_float=_number)
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError, OverflowError):
        return source


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _number(text: str) -> int | float:
    """JSON knows one kind of number: clients in JavaScript send 1 for 1.0."""
    value = float(text)
    return int(value) if value.is_integer() else value
