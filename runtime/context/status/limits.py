"""How often a tool was called, and how often it may be: counted on the host, so that no model has to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeproot.runtime.context.status.history import MadeCall
from deeproot.runtime.context.status.reading import Reading

_NAMED = 8


@dataclass(frozen=True, slots=True)
class CallLimit:
    """`tool` may be called `at_most` times; with `argument`, so many times for each value of that argument."""

    tool: str
    at_most: int
    argument: str = ""

    def __post_init__(self) -> None:
        if self.at_most < 0:
            raise ValueError(f"at_most is {self.at_most}; give 0 or more")

    def count(self, calls: Sequence[MadeCall]) -> Counter[str]:
        """Answered calls by the argument's value (without an argument, all under one)."""
        return Counter(self._value(call) for call in calls if call.name == self.tool)

    def readings(self, calls: Sequence[MadeCall]) -> list[Reading]:
        """A line for each value that was called with, in the order of the first call."""
        return [self._reading(value, made) for value, made in self.count(calls).items()]

    def _value(self, call: MadeCall) -> str:
        if not self.argument or not isinstance(call.arguments, Mapping):
            return ""
        return str(call.arguments.get(self.argument, ""))

    def _reading(self, value: str, made: int) -> Reading:
        key = f"{self.tool} to {value}" if value else self.tool
        told = f"{made} calls ({made}/{self.at_most})"
        if made < self.at_most:
            return Reading(key, told)
        return Reading(key, told, f"maximum reached: do not call {key} again")


def tally(counts: Counter[str]) -> list[Reading]:
    """How often each tool was called, the most used first; the order of first use among equals."""
    if not counts:
        return []
    common = counts.most_common(_NAMED)
    more = f" and {len(counts) - len(common)} more tools" if len(counts) > len(common) else ""
    return [Reading("calls", ", ".join(f"{name} {made}" for name, made in common) + more)]
