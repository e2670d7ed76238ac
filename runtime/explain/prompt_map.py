"""Which message, or which tools, a token of a rendered prompt comes from.

The conversation is rendered once more with marks inside each line of its strings, one between any two tags. The marks travel through whatever the
template does; where they come out, that line of that string stands. If the marks change anything else in the text,
there is no map.
"""

import re
import secrets
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer
from deeproot.runtime.explain.history import Chat

_MARK_START, _MARK_END = "\ufdd6", "\ufdd7"  # no characters
# In the middle of a word, and not in a tag: templates look for those.
_TAG = re.compile(r"<[^<>\n]*>")
_TAG_OR_WORD = re.compile(rf"{_TAG.pattern}|\w(?=\w)")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a string of the request stands in it."""

    message: int | None
    """None: the tools."""
    part: str
    """`content`, `reasoning_content`, `tool_calls`, …"""

    @property
    def name(self) -> str:
        return "tools" if self.message is None else f"messages[{self.message}].{self.part}"


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a token stands. `origin` None: between the messages, in the template's own words."""

    origin: Origin | None
    literal: bool
    """Whether the words there are the template's."""


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    end: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Stretch:
    """The text between two control tokens, and the lines of the request in it, from left to right."""

    text: str
    lines: tuple[_Line, ...]

    def spot(self, at: int) -> Spot:
        """What stands at character `at`; the template's words count to the string that follows in the same stretch."""
        if not self.lines:
            return Spot(None, literal=True)
        i = bisect_right(self.lines, at, key=lambda line: line.start) - 1
        if i >= 0 and at < self.lines[i].end:
            return Spot(self.lines[i].origin, literal=False)
        before = self.lines[i] if i >= 0 else None
        after = self.lines[i + 1] if i + 1 < len(self.lines) else None
        near = after or before
        assert near is not None
        inside = before is not None and after is not None and before.origin == after.origin
        between = self.text[before.end : after.start] if before and after and inside else "x"
        return Spot(near.origin, literal=bool(between.strip()))


@dataclass(frozen=True, slots=True)
class PromptMap:
    """A prompt's text in stretches, as many as it has control tokens, and one."""

    stretches: tuple[Stretch, ...]

    def at(self, place: "TokenPlace") -> Spot:
        if place.stretch >= len(self.stretches):
            return Spot(None, literal=True)
        return self.stretches[place.stretch].spot(place.offset)


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """A token's place in the text that the model sees."""

    stretch: int
    """How many control tokens stand before it."""
    offset: int
    """Characters from the last of them to it."""
    text: str
    """The stretch that it stands in."""
    cut: bool
    """Whether the sequence ends before the stretch does."""


def place_of(tokenizer: Tokenizer, ids: Int32Array, token: int) -> TokenPlace:
    """The place of `ids[token]`; of the end if `token` is the length. ids: `[num_tokens]`."""
    special = np.isin(ids, np.fromiter(tokenizer.special_ids, dtype=np.int32))
    before = np.flatnonzero(special[:token])
    start = int(before[-1]) + 1 if len(before) else 0
    behind = np.flatnonzero(special[token:])
    end = token + int(behind[0]) if len(behind) else len(ids)
    offset = len(_text(tokenizer, ids[start:token]))
    return TokenPlace(len(before), offset, _text(tokenizer, ids[start:end]), cut=not len(behind))


def map_prompt(template: ChatTemplate, tokenizer: Tokenizer, chat: Chat) -> PromptMap | None:
    """The map of a conversation's prompt; None where the template does not let the marks through."""
    marks = _Marks()
    messages = [
        {key: marks.put(value, Origin(i, key)) if key != "role" else value for key, value in message.items()}
        for i, message in enumerate(chat.messages)
    ]
    tools: list[Mapping[str, Any]] = [marks.put(tool, Origin(None, "tools")) for tool in chat.tools]
    try:
        plain = _stretches(template, tokenizer, chat.messages, chat.tools, chat.template_kwargs)
        marked = _stretches(template, tokenizer, messages, tools, chat.template_kwargs)
    except TemplateError:
        return None
    stretches = tuple(marks.taken_out(text) for text in marked)
    if [stretch.text for stretch in stretches] != plain:
        return None
    return PromptMap(stretches)


def _stretches(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
) -> list[str]:
    guard = template.guard
    spans = guard.spans(template.rendering(messages, tools, **kwargs))
    special: list[str] = []
    for entry in tokenizer.added:
        alias = guard.alias_of(entry.token_id)
        if alias is not None and entry.token_id in tokenizer.special_ids:
            special.append(alias)
        elif alias is not None:
            spans = spans.replace(alias, entry.text)
    return re.split("|".join(map(re.escape, special)) or "(?!)", spans)


class _Marks:
    """Puts marks into strings, and finds them again."""

    def __init__(self) -> None:
        nonce = secrets.randbits(64)
        self._start = f"{_MARK_START}{nonce}:"
        self._pattern = re.compile(re.escape(self._start) + rf"(\d+){_MARK_END}")
        self._lines: list[tuple[str, int, Origin]] = []
        """Of each mark its line, where in the line it stands, and whose it is."""

    def put(self, value: Any, origin: Origin) -> Any:
        """A copy of JSON-like data with marks in its strings; the keys stay."""
        if isinstance(value, str):
            return "".join(self._marked(line, origin) for line in value.splitlines(keepends=True))
        if isinstance(value, Mapping):
            # The name of a kind is compared by templates, and arguments may be parsed by them.
            kept = ("type", "id", "arguments")
            return {key: v if key in kept else self.put(v, origin) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.put(item, origin) for item in value]
        return value

    def taken_out(self, text: str) -> Stretch:
        """A piece of the rendering without its marks, and the lines that they were in."""
        parts, lines, done, size = [], [], 0, 0
        for found in self._pattern.finditer(text):
            parts.append(text[done : found.start()])
            size += len(parts[-1])
            lines.append((size, self._lines[int(found[1])]))
            done = found.end()
        plain = "".join([*parts, text[done:]])
        return Stretch(plain, tuple(_placed(plain, at, *line) for at, line in lines))

    def _marked(self, line: str, origin: Origin) -> str:
        parts, done, found = [], 0, _TAG_OR_WORD.search(line)
        while found is not None:
            end = found.end()
            if found[0].startswith("<"):
                found = _TAG_OR_WORD.search(line, end)
            else:
                parts += [line[done:end], f"{self._start}{len(self._lines)}{_MARK_END}"]
                self._lines.append((line, end, origin))
                done = end
                # What stands before a tag may be cut off, so the next mark is behind the next tag.
                found = _TAG.search(line, end)
        return "".join([*parts, line[done:]])


def _placed(text: str, at: int, line: str, inside: int, origin: Origin) -> _Line:
    """How much of `line` stands around character `at`, where its mark was."""
    start = at - _num_common(text[max(0, at - inside) : at][::-1], line[:inside][::-1])
    end = at + _num_common(text[at : at + len(line) - inside], line[inside:])
    return _Line(start, end, origin)


def _num_common(one: str, other: str) -> int:
    """With how many characters both texts begin. By comparing halves: character by character is slow in Python."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _text(tokenizer: Tokenizer, ids: Int32Array) -> str:
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False)
