"""Whether a chat template only ever appends: what it made of a conversation should begin what it makes of a longer one.

Where it does not, a cache loses everything behind the change, whatever the engine does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate

_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}
_CLOCKS: tuple[datetime, ...] = (datetime(2024, 3, 5, 10, 15), datetime(2025, 11, 26, 21, 40))
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Break:
    """A kind of turn at which earlier text changes."""

    turn: str
    before: str
    """What stood there, a few characters; empty if the template refuses such a turn."""
    after: str
    """What stands there once the turn is added, or why the template refuses."""

    @property
    def refused(self) -> bool:
        return not self.before


@dataclass(frozen=True, slots=True)
class _Trial:
    """A conversation that grows. `written`: what the model writes after `start`, where the text tells."""

    turn: str
    start: list[dict[str, Any]]
    added: list[dict[str, Any]]
    tools: bool = False
    written: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    thinks: bool = False


def find_breaks(template: ChatTemplate) -> tuple[Break, ...]:
    """The kinds of turns at which `template` changes earlier text or which it refuses; none is best."""
    found: dict[str, Break] = {}
    for trial in _trials():
        # Where any user turn changes the text, one with thinking does too and tells nothing more.
        if trial.turn in found or (trial.thinks and "user turn" in found):
            continue
        broken = _tried(template, trial)
        if broken is not None:
            found[trial.turn] = broken
    dated = _tried_dates(template)
    return (*found.values(), *([dated] if dated is not None else []))


def summary(breaks: tuple[Break, ...]) -> str:
    """One line for a log or a report."""
    changed = [item.turn for item in breaks if not item.refused]
    refused = [item.turn for item in breaks if item.refused]
    text = "append-only" if not changed else f"changes earlier text at: {', '.join(changed)}"
    return text + (f"; refuses: {', '.join(refused)}" if refused else "")


def _trials() -> list[_Trial]:
    head = [_message("system", "Be brief."), _message("user", "What is there?")]
    answer, question = _message("assistant", "A tree."), _message("user", "And behind it?")
    one = [_calls("abcdefgh1"), _result("abcdefgh1")]
    two = [_calls("abcdefgh1", "abcdefgh2"), _result("abcdefgh1"), _result("abcdefgh2")]
    thought = "<think>\nLeaves.\n</think>\n\nA tree."
    return [
        _Trial("user turn", head, [answer, question], written="A tree."),
        _Trial("user turn", [*head, answer, question], [_message("assistant", "A hill."), head[1]]),
        _Trial("user turn with tools", head, [answer, question], tools=True, written="A tree."),
        _Trial("tool call", head, one, tools=True),
        _Trial("tool result", [*head, *one], [answer, question], tools=True, written="A tree."),
        _Trial("parallel call", head, two, tools=True),
        _Trial("parallel call", [*head, *two], [answer, question], tools=True),
        _Trial(
            "empty think section",
            head,
            [answer, question],
            written="A tree.",
            kwargs={"enable_thinking": False},
            thinks=True,
        ),
        _Trial(
            "thinking turn", head, [_message("assistant", thought), question], written=thought, thinks=True
        ),
    ]


def _tried(template: ChatTemplate, trial: _Trial) -> Break | None:
    tools = [_TOOL] if trial.tools else None
    try:
        before = template.render(trial.start, tools, **trial.kwargs) + trial.written
        after = template.render([*trial.start, *trial.added], tools, **trial.kwargs)
    except TemplateError as error:
        return Break(trial.turn, "", str(error))
    return _compared(trial.turn, before, after)


def _tried_dates(template: ChatTemplate) -> Break | None:
    """Whether the same conversation is the same at another time."""
    head = [_message("user", "What is there?")]
    try:
        early, late = (template.with_clock(_stopped(now)).render(head) for now in _CLOCKS)
    except TemplateError:
        return None
    return _compared("another day", early, late)


def _stopped(now: datetime) -> Callable[[], datetime]:
    return lambda: now


def _compared(turn: str, before: str, after: str) -> Break | None:
    if after.startswith(before):
        return None
    at = next(i for i in range(len(before)) if before[i : i + 1] != after[i : i + 1])
    return Break(turn, before[at : at + _SHOWN], after[at : at + _SHOWN])


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _calls(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "bark"}
