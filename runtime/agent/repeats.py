"""Notices that a model makes the same call over and over."""

import json
from collections.abc import Sequence

from deeproot.runtime.agent.arguments import READERS
from deeproot.runtime.agent.stream import Call
from deeproot.runtime.context.calls import arguments_of, calls_of, spell_call
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind

_SHOWN = 120
_ENOUGH = 3
"""A command that is run twice may have a reason; a reader that is asked twice has none."""


def repeated(log: EventLog, calls: Sequence[Call]) -> list[str]:
    """A line for each of the newest message's `calls` that was made before, with no other call since that could have
    changed what it answers."""
    history = _history(log)
    earlier = history[: len(history) - len(calls)]
    lines = []
    for call in calls:
        key = _key(call.name, call.arguments)
        same = []
        for seq, made in reversed(earlier):
            if made == key:
                same.append(seq)
            elif made[0] not in READERS:
                break
        if len(same) + 1 >= (2 if call.name in READERS else _ENOUGH):
            spelled = spell_call({"name": call.name, "arguments": call.arguments}, _SHOWN)
            times = "once" if len(same) == 1 else f"{len(same)} times"
            lines.append(
                f"[repeated call: {spelled} was made {times} before, the last time by #{same[0]}, and nothing that you"
                " did since can have changed its answer: use that, or do something else]"
            )
        earlier = [*earlier, (0, key)]
    return list(dict.fromkeys(lines))


def _history(log: EventLog) -> list[tuple[int, tuple[str, str]]]:
    """Every call: event of its message, name and arguments."""
    return [
        (event.seq, _key(str(call.get("name", "")), str(call.get("arguments", ""))))
        for event in log.read()
        if event.kind is EventKind.ASSISTANT
        for call in calls_of(event).values()
    ]


def _key(name: str, arguments: str) -> tuple[str, str]:
    given = arguments_of({"arguments": arguments})
    return name, given if isinstance(given, str) else json.dumps(given, sort_keys=True)
