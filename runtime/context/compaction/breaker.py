"""The circuit breaker: compactions that free nothing end, and begin again when there is something to free."""

from dataclasses import dataclass

from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind

PART = "compaction"
USELESS_IN_A_ROW = 3
USEFUL_SHARE = 0.10
"""What a compaction must free of the tokens that there were."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One compaction, as the log keeps it. `compactable`: tokens that it could have replaced."""

    before: int
    after: int
    compactable: int
    strategy: str
    layers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def useful(self) -> bool:
        """Whether it freed at least a tenth."""
        return self.before - self.after >= USEFUL_SHARE * self.before

    def to_event(self) -> NewEvent:
        """As the log keeps it."""
        data = {
            "part": PART,
            "before": self.before,
            "after": self.after,
            "compactable": self.compactable,
            "strategy": self.strategy,
            "layers": list(self.layers),
            "notes": list(self.notes),
        }
        return NewEvent(EventKind.STATE_CHANGE, b"", data)


class Breaker:
    """Reads its state from the log, so that a restart does not close it. For one log."""

    def __init__(self) -> None:
        self._read = 0
        self._useless = 0
        self._compactable = 0
        self.compactions = 0
        """Useful ones, in all."""

    def read(self, log: EventLog) -> None:
        """Take note of what was compacted since."""
        for event in log.read(self._read + 1):
            self._read = event.seq
            data = event.data
            if event.kind is not EventKind.STATE_CHANGE or data.get("part") != PART:
                continue
            if data.get("rearm"):
                self._useless = 0
                continue
            before, after = int(data.get("before", 0)), int(data.get("after", 0))
            useful = Verdict(before, after, 0, "").useful
            self._useless = 0 if useful else self._useless + 1
            self.compactions += useful
            self._compactable = int(data.get("compactable", 0))

    def why_open(self, compactable: int, total: int) -> str | None:
        """Why no compaction is to be tried, as a sentence; None if one may be.

        `compactable`: tokens that could be replaced now; `total`: the budget. After three useless ones in a row the
        breaker is open. It lets one more be tried each time that what could be replaced has grown by a tenth of the
        budget; one that is useful closes it.
        """
        if self._useless < USELESS_IN_A_ROW:
            return None
        needed = self._compactable + int(USEFUL_SHARE * total)
        if compactable >= needed:
            return None
        return (
            f"the last {self._useless} compactions freed less than {USEFUL_SHARE:.0%} each, so none is tried until"
            f" {needed} tokens can be replaced (now {compactable}) or `rearm` is called; raise the budget, unpin something"
            " or keep fewer turns"
        )


def rearm(log: EventLog) -> int:
    """Close the breaker by hand, after the budget or the strategy was changed, say. Returns the event's number."""
    return log.append(EventKind.STATE_CHANGE, b"", data={"part": PART, "rearm": True}).seq
