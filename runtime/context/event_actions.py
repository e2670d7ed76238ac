"""From the tool results of a log to what the calls did to files."""

import json
from collections.abc import Mapping
from typing import Any

from deeproot.runtime.context.calls import arguments_of
from deeproot.runtime.context.events import Event
from deeproot.runtime.context.filters.actions import ActionReader
from deeproot.runtime.context.filters.observation import Action


class EventActions:
    """Reads the results of one log, in order, since a shell has a working directory."""

    def __init__(self) -> None:
        self._reader = ActionReader()

    def read(self, event: Event, text: str, call: Mapping[str, Any] | None) -> Action:
        """What the call that tool result `event` answers did to files. `text`: its output. `call`: as `calls_of` has it."""
        command = event.data.get("action")
        if isinstance(command, str):
            before, after = _working_dirs(event.data.get("state"))
            if before is not None:
                self._reader.enter(before)
            action = self._reader.command(command, text, event.exit_code)
            if after is not None:
                self._reader.enter(after)
            return action
        call = call or {}
        name, arguments = str(call.get("name", "")), arguments_of(call)
        if isinstance(arguments, str):
            return self._reader.command(arguments, text, event.exit_code)
        if isinstance(arguments, Mapping):
            return self._reader.tool_call(name, arguments, text, event.exit_code)
        return Action(name)


def _working_dirs(state: Any) -> tuple[str | None, str | None]:
    """Where a step of SWE-agent began and ended, as its state says: up to 0.7 it is JSON of before, later a mapping of
    after the action."""
    before = isinstance(state, str)
    if before:
        try:
            state = json.loads(state)
        except ValueError:
            return None, None
    folder = state.get("working_dir") if isinstance(state, Mapping) else None
    if not isinstance(folder, str) or not folder.startswith("/"):
        return None, None
    return (folder, None) if before else (None, folder)
