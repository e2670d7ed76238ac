"""Readings: what stands in the status, as lines that are found at a glance."""

from collections.abc import Iterable
from typing import NamedTuple

_LONGEST = 240
"""Characters of a value; a status is read at every call."""


class Reading(NamedTuple):
    """One line of the status. `rule`: what to do about it, where that does not go without saying."""

    key: str
    value: str
    rule: str = ""

    def __str__(self) -> str:
        line = f"{one_line(self.key)}: {one_line(self.value)}"
        return f"{line} -> {one_line(self.rule)}" if self.rule else line


def spell(readings: Iterable[Reading]) -> str:
    """The readings as key-value lines. No value can begin a line of its own."""
    return "\n".join(map(str, readings))


def one_line(text: str) -> str:
    """A text on one line: blanks as one, what does not print as `?`, the end of a long one counted."""
    words = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return (
        words if len(words) <= _LONGEST else f"{words[:_LONGEST]} [{len(words) - _LONGEST} more characters]"
    )
