"""Finding fixed texts in text that comes in pieces."""

from collections.abc import Iterable

SPACE = " \t\r\n"


def first_mark(text: str, marks: Iterable[str]) -> tuple[int, str] | None:
    """Where the first of `marks` stands in `text`, and which it is; of several at one place the longest."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if not found:
        return None
    at, _, mark = min(found)
    return at, mark


def start_of_partial(text: str, marks: Iterable[str]) -> int:
    """Where the longest end of `text` that begins one of `marks` starts; `len(text)` if there is none."""
    return min((_start_of_one(text, mark) for mark in marks), default=len(text))


def _start_of_one(text: str, mark: str) -> int:
    at = max(0, len(text) - len(mark) + 1)
    while (at := text.find(mark[0], at)) >= 0:
        if mark.startswith(text[at:]):
            return at
        at += 1
    return len(text)
