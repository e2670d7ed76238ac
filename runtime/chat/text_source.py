"""Text that comes in pieces, as a reader of tool calls takes it.

A reader is a generator over a `TextSource`. It takes what its format asks for, gives each call that is certain, and
gives None where it has to wait for more text; it ends where its format ends. It raises `NoCall` as soon as what it
reads cannot be a call, and `Truncated` where the text ends inside one. What was taken since the last call that it gave
is plain text then. So a reader is written as if all the text were there, and works however the text is cut.
"""

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from deeproot.runtime.chat.json_scanner import JsonObjectScanner, JsonStatus
from deeproot.runtime.chat.marks import SPACE, first_mark, start_of_partial


class NoCall(Exception):
    """What stands there is no call in this format."""


class Truncated(Exception):
    """The text ended inside a call."""


@dataclass(frozen=True, slots=True)
class RawCall:
    name: str
    arguments: str
    """A JSON object."""
    call_id: str | None = None
    """If the format gives calls ids."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    text: str
    """As it was written, without white space around it."""
    members: Mapping[str, str]
    """Its members' values, as they were written."""


T = TypeVar("T")
Steps = Generator[RawCall | None, None, T]
"""See the module."""


class TextSource:
    """See the module. The cost of a character does not depend on those before it."""

    def __init__(self, text: str, *, ended: bool) -> None:
        self._rest = text
        self._taken: list[str] = []
        self.ended = ended
        """Whether no more text will come; no step gives None then."""

    @property
    def taken(self) -> str:
        """What was taken since the last `commit`."""
        return "".join(self._taken)

    @property
    def rest(self) -> str:
        """What has come and was not taken."""
        return self._rest

    def add(self, text: str) -> None:
        """More text has come."""
        self._rest += text

    def commit(self) -> None:
        """What was taken so far will not be plain text any more."""
        self._taken.clear()

    def next_is(self, *texts: str, or_end: bool = False) -> Steps[str | None]:
        """Which of `texts` comes next, after white space if there is any; takes nothing. None of them may begin
        another. `or_end`: the end of the text, also within one of them, stands for the first that fits."""
        while True:
            rest = self._rest.lstrip(SPACE)
            for text in texts:
                if rest.startswith(text):
                    return text
            fitting = [text for text in texts if text.startswith(rest)]
            if not fitting:
                return None
            if self.ended:
                return fitting[0] if or_end else None
            yield None

    def accept(self, *texts: str, or_end: bool = False) -> Steps[str | None]:
        """As `next_is`, but takes it, and the white space before it, if it is there."""
        found = yield from self.next_is(*texts, or_end=or_end)
        if found is not None:
            self._take(self._num_spaces() + len(found))
        return found

    def expect(self, *texts: str) -> Steps[str]:
        """As `accept`, but one of them has to be there."""
        found = yield from self.accept(*texts)
        if found is not None:
            return found
        rest = self._rest.lstrip(SPACE)
        raise Truncated if any(text.startswith(rest) for text in texts) else NoCall

    def one(self) -> Steps[str]:
        """Take one character."""
        while not self._rest:
            if self.ended:
                raise Truncated
            yield None
        return self._take(1)

    def word(self, letters: re.Pattern[str]) -> Steps[str]:
        """Take white space, and then as many characters as match; `letters` matches one or more."""
        parts: list[str] = []
        while True:
            if not parts:
                self._take(self._num_spaces())
            found = letters.match(self._rest)
            if found is not None:
                parts.append(self._take(found.end()))
            if self._rest or self.ended:
                return "".join(parts)
            yield None

    def until(self, *marks: str) -> Steps[tuple[str, str]]:
        """Take all before the first of `marks`, and the mark; returns both."""
        parts: list[str] = []
        while True:
            found = first_mark(self._rest, marks)
            if found is not None:
                parts.append(self._take(found[0]))
                return "".join(parts), self._take(len(found[1]))
            parts.append(self._take(start_of_partial(self._rest, marks)))
            if self.ended:
                raise Truncated
            yield None

    def json_object(self, allowed: frozenset[str] | None = None) -> Steps[JsonObject]:
        """Take a JSON object. `allowed`: the only keys that it may have."""
        scanner, parts, num_keys = JsonObjectScanner(), list[str](), 0
        while True:
            parts.append(self._take(scanner.feed(self._rest)))
            if allowed is not None and len(scanner.key_spans) > num_keys:
                num_keys, body = len(scanner.key_spans), "".join(parts)
                if any(json.loads(body[slice(*span)]) not in allowed for span in scanner.key_spans):
                    raise NoCall
            if scanner.status is JsonStatus.BROKEN:
                raise NoCall
            if scanner.status is JsonStatus.DONE:
                return _json_object("".join(parts), scanner)
            if self.ended:
                raise Truncated
            yield None

    def _num_spaces(self) -> int:
        return len(self._rest) - len(self._rest.lstrip(SPACE))

    def _take(self, size: int) -> str:
        piece, self._rest = self._rest[:size], self._rest[size:]
        self._taken.append(piece)
        return piece


def _json_object(body: str, scanner: JsonObjectScanner) -> JsonObject:
    members = {
        json.loads(body[slice(*key)]): body[slice(*value)]
        for key, value in zip(scanner.key_spans, scanner.value_spans, strict=True)
    }
    return JsonObject(body.strip(SPACE), members)
