"""The five things that can be said to a model beside what its tools return, each on a switch of its own."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Techniques:
    """Which are on. The first two are read by `WorkingSet`, since they mark messages; detailed errors by
    `failures.describe_failure`, the others by `StatusBar`."""

    timestamps: bool = False
    """Each user message and tool result says when it came."""
    call_counter: bool = False
    """Each tool result says which call of that tool it answers, and the status how many there were."""
    todo: bool = False
    """The list that the model keeps with the tools of `todo` stands in the status."""
    detailed_errors: bool = False
    """A failing tool says type, arguments, stack and what to try (`failures.describe_failure`)."""
    system_state: bool = False
    """Time, folder, system, shell and Python stand in the status."""

    @classmethod
    def all(cls) -> Self:
        """Every one of them."""
        return cls(True, True, True, True, True)


NO_TECHNIQUES = Techniques()
