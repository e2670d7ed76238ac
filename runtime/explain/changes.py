"""What kind of change made two prompts part: decided by what stands on both sides, first match wins."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.context.linter import PATTERNS
from deeproot.runtime.explain.prompt_map import Origin
from deeproot.runtime.explain.report import Cause

_KINDS = {
    "timestamp": Cause.CHANGED_TIME,
    "uuid": Cause.CHANGED_ID,
    "address": Cause.CHANGED_ID,
    "hex": Cause.CHANGED_ID,
    "temp path": Cause.CHANGED_ID,
    "counter": Cause.CHANGED_COUNTER,
}
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_VOLATILE = (
    *PATTERNS,
    ("timestamp", re.compile(rf"\b\d{{1,2}} {_MONTH},? \d{{4}}\b")),
    ("timestamp", re.compile(rf"\b{_MONTH} \d{{1,2}},? \d{{4}}\b")),
)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_WHOLE_WORD = re.compile(r"\s*\S+\s")
_WORD = re.compile(r"\w+")
_SAME_AGAIN = 32
"""Characters behind a difference that have to come again for the difference to be a change and not the end."""
_LOOKED_AT = 20_000
"""Characters behind a difference within which that is looked for."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of two sequences at the place where they part."""

    text: str
    """The stretch between control tokens that the place is in."""
    at: int
    """The place, in characters of `text`."""
    cut: bool
    """Whether the sequence ends before the stretch does."""
    origin: Origin | None
    messages: Sequence[Mapping[str, Any]]
    """Of the old side with the reply as the last."""
    tools: Sequence[Mapping[str, Any]]
    is_chat: bool

    @property
    def index(self) -> int | None:
        return None if self.origin is None else self.origin.message


def cause_of(old: Side, new: Side, reply: str) -> Cause:
    """Why `new` does not go on as `old` does. reply: what the model wrote in the old request."""
    if old.text == new.text or (old.cut and new.text.startswith(old.text)) or _same_word(old, new):
        return Cause.RETOKENISED_OUTPUT
    if json.dumps(old.tools) != json.dumps(new.tools) and Origin(None, "tools") in (old.origin, new.origin):
        return _tools_cause(old.tools, new.tools)
    thinking = _thinking_cause(old, new)
    if thinking is not None:
        return thinking
    if new.is_chat and old.is_chat:
        moved = _moved(old, new)
        if moved is not None:
            return moved
    if old.index == new.index:
        changed = _text_cause(old, new)
        if changed is not None and (_is_settled(old, new) or _comes_again(old, new)):
            return changed
    if new.index is not None and new.messages[new.index].get("role") != "assistant":
        words = reply.strip()
        if len(words) >= _SAME_AGAIN // 2 and _shows(words, new.text[new.at :]):
            return Cause.HISTORY_AS_TEXT
    return Cause.CHANGED_TEXT if _comes_again(old, new) else Cause.FIRST_SEEN


def _same_word(old: Side, new: Side) -> bool:
    """Whether a whole word follows the place, the same in both: then only its ids are others."""
    word = _WHOLE_WORD.match(old.text, old.at)
    return word is not None and new.text.startswith(old.text[: word.end()])


def _tools_cause(old: Sequence[Any], new: Sequence[Any]) -> Cause:
    one, other = [list(map(_canonical, tools)) for tools in (old, new)]
    if one == other:
        return Cause.RESERIALISED_JSON
    return Cause.CHANGED_ORDER if sorted(one) == sorted(other) else Cause.CHANGED_TOOLS


def _thinking_cause(old: Side, new: Side) -> Cause | None:
    """A reply without the thinking that it had: the template's doing if the client sent it."""
    thoughts = _THINKING.findall(old.text)
    if not thoughts or _squeezed(_THINKING.sub("", old.text)) != _squeezed(_THINKING.sub("", new.text)):
        return None
    if len(_THINKING.findall(new.text)) >= len(thoughts):
        return None
    message: Mapping[str, Any] = new.messages[new.index] if new.index is not None else {}
    sent = "</think>" in json.dumps(message.get("content", "")) or bool(message.get("reasoning_content"))
    had_words = any(_squeezed(thought) != "<think></think>" for thought in thoughts)
    return Cause.THINKING_NOT_SENT if had_words and not sent else Cause.THINKING_DROPPED


def _moved(old: Side, new: Side) -> Cause | None:
    """Whole messages that are gone from the middle, or are new there."""
    i, j = new.index, old.index
    if i is None or j is None:
        return None
    before, after = list(map(_essence, old.messages[j:])), list(map(_essence, new.messages[i:]))
    if _continues(after, before[1:]):
        return Cause.MESSAGES_REMOVED
    if _continues(before, after[1:]):
        return Cause.MESSAGES_INSERTED
    return None


def _continues(wanted: Sequence[Any], among: Sequence[Any]) -> bool:
    """Whether the first of `wanted` stands in `among`, with the ones that follow it there."""
    return bool(wanted) and any(
        all(a == b for a, b in zip(wanted[:3], among[start : start + 3], strict=False))
        for start in range(len(among))
    )


def _text_cause(old: Side, new: Side) -> Cause | None:
    """How one text became the other: of the whole stretch, else of the line in which they part."""
    for one, other in dict.fromkeys(((old.text, new.text), _parting_lines(old, new))):
        if one == other:
            continue
        if _with_canonical_json(one) == _with_canonical_json(other):
            return Cause.RESERIALISED_JSON
        open_end = old.cut or new.cut
        if _agree(_squeezed(one), _squeezed(other), open_end):
            return Cause.CHANGED_WHITESPACE
        if _squeezed(_with_canonical_json(one)) == _squeezed(_with_canonical_json(other)):
            return Cause.RESERIALISED_JSON
        volatile = _volatile_cause(one, other, open_end)
        if volatile is not None:
            return volatile
        words, other_words = _WORD.findall(one), _WORD.findall(other)
        if words != other_words and sorted(words) == sorted(other_words):
            return Cause.CHANGED_ORDER
    return None


def _parting_lines(old: Side, new: Side) -> tuple[str, str]:
    start = new.text.rfind("\n", 0, new.at) + 1
    if old.text[:start] != new.text[:start]:
        start = 0
    lines = [text[start:].split("\n", 1)[0] for text in (old.text, new.text)]
    return lines[0], lines[1]


def _agree(one: str, other: str, open_end: bool) -> bool:
    """Whether texts are the same, or, if one of them goes on, as far as both go."""
    return one == other or (
        open_end and bool(one and other) and (one.startswith(other) or other.startswith(one))
    )


def _volatile_cause(one: str, other: str, open_end: bool) -> Cause | None:
    """A time, an id or a counter, if nothing else differs: the kind of the first that does."""
    (rest, found), (other_rest, other_found) = _masked(one), _masked(other)
    if not _agree(rest, other_rest, open_end):
        return None
    for (kind, text), (_, other_text) in zip(found, other_found, strict=False):
        if text != other_text:
            return _KINDS[kind]
    return None


def _masked(text: str) -> tuple[str, list[tuple[str, str]]]:
    """`text` with a hole for each volatile stretch, which of two that overlap starts first, and the stretches."""
    found = [(m.start(), -m.end(), kind) for kind, pattern in _VOLATILE for m in pattern.finditer(text)]
    parts, stretches, done = [], [], 0
    for start, minus_end, kind in sorted(found):
        if start >= done:
            parts.append(text[done:start])
            stretches.append((kind, text[start:-minus_end]))
            done = -minus_end
    return "\0".join([*parts, text[done:]]), stretches


def _is_settled(old: Side, new: Side) -> bool:
    """Whether the place is in what should stay: tools, system, or a turn that was answered."""
    if not new.is_chat or new.index is None:
        return new.is_chat
    answered = max((i for i, m in enumerate(new.messages) if m.get("role") == "assistant"), default=-1)
    return new.index <= answered or new.messages[new.index].get("role") in ("system", "developer")


def _comes_again(old: Side, new: Side) -> bool:
    """Whether something behind the difference is the same in both."""
    i, j = new.index, old.index
    if i is not None and j is not None:
        later = [_essence(message) for message in new.messages[i + 1 :]]
        same = [text for message in old.messages[j + 1 :] if (text := _essence(message)) in later]
        # One short message may be the same in any two conversations.
        if len(same) > 1 or sum(len(content) for _, content, _ in same) >= 2 * _SAME_AGAIN:
            return True
    behind, other = old.text[old.at : old.at + _LOOKED_AT], new.text[new.at : new.at + _LOOKED_AT]
    step = _SAME_AGAIN // 2
    return any(
        behind[start : start + _SAME_AGAIN] in other
        for start in range(1, len(behind) - _SAME_AGAIN + 1, 1 if len(behind) < 2000 else step)
    )


def _shows(words: str, text: str) -> bool:
    """Whether a reply stands in a text, as it is or with its white space otherwise."""
    return words in text or _squeezed(words) in _squeezed(text)


def _essence(message: Mapping[str, Any]) -> tuple[Any, str, str]:
    """What of a message counts when whole messages are compared."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    calls = [call.get("function") for call in message.get("tool_calls") or [] if isinstance(call, Mapping)]
    return message.get("role"), str(content).strip(), _canonical(calls)


def _with_canonical_json(text: str) -> str:
    """The text with every JSON object or list in it in one spelling."""
    decoder, parts, done = json.JSONDecoder(), [], 0
    for found in re.finditer(r"[\[{]", text):
        if found.start() < done:
            continue
        try:
            value, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        parts += [text[done : found.start()], _canonical(value)]
        done = end
    return "".join([*parts, text[done:]])


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _squeezed(text: str) -> str:
    return "".join(text.split())
