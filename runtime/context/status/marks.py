"""What the host says of single messages: when they came, and which call of its tool a result answers."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from deeproot.runtime.context.envelope import iso_time
from deeproot.runtime.context.events import Event
from deeproot.runtime.context.status.techniques import Techniques


class Marks:
    """Marks the messages of one log, fed in its order. `attribute`: makes a name safe to show (`Envelopes.attribute`)."""

    def __init__(self, techniques: Techniques, attribute: Callable[[str], str]) -> None:
        self._on = techniques
        self._attribute = attribute
        self._made: Counter[str] = Counter()
        self._behind: dict[int, str] = {}

    def count(self, event: Event, call: Mapping[str, Any] | None) -> None:
        """Take note of a result, before it is marked for the first time."""
        if call is not None and self._on.call_counter:
            name = str(call.get("name", ""))
            self._made[name] += 1
            self._behind[event.seq] = f"\n[call {self._made[name]} of {self._attribute(name)}]"

    def on_result(self, body: str, event: Event) -> str:
        """A tool result, its envelope included; the same event gets the same marks for ever."""
        when = f"[{iso_time(event.time_ns)}]\n" if self._on.timestamps else ""
        return f"{when}{body}{self._behind.get(event.seq, '')}"

    def on_user(self, text: str, event: Event) -> str:
        """A user's message; one of several parts is left as it is."""
        if not self._on.timestamps or event.data.get("content") == "parts":
            return text
        return f"[{iso_time(event.time_ns)}] {text}"
