"""Whether a reply that a client sent back is the one that the model wrote."""

import json
import re
from typing import Any

_CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def same_reply(sent: str, written: str) -> bool:
    """Whether they differ at most in white space at the end, in white space around and in tool calls, and in how
    the JSON of tool calls is written: order of keys, spaces, escapes, 1.0 for 1.

    A call that is not strict JSON, or names a key twice, has to be the same to the letter.
    """
    return sent == written or _normal(sent) == _normal(written)


def _normal(reply: str) -> list[tuple[str, str]]:
    """The reply as texts and calls in order, each in one spelling."""
    parts: list[tuple[str, str]] = []
    text, start = "", 0
    for found in _CALL.finditer(reply):
        value = _one_spelling(found[1])
        if value is None:
            text += reply[start : found.end()]
        else:
            parts += [("text", (text + reply[start : found.start()]).rstrip()), ("call", value)]
            text = ""
        start = found.end()
    return [*parts, ("text", (text + reply[start:]).rstrip())]


def _one_spelling(source: str) -> str | None:
    try:
        value = json.loads(source, object_pairs_hook=_without_twins, parse_float=_number)
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError, OverflowError):
        return None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _number(text: str) -> int | float:
    """JSON knows one kind of number: clients in JavaScript send 1 for 1.0."""
    value = float(text)
    return int(value) if value.is_integer() else value
