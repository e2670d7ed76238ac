"""What stands beside the archive's pointer: the open diagnostics of turns that a layout archived."""

from collections.abc import Collection, Sequence

from deeproot.runtime.context.compaction.escrow import (
    MOST_LINES,
    Escrow,
    OpenDiagnostic,
    abridged,
    escrow_text,
    unsaid,
)
from deeproot.runtime.context.compaction.turns import TurnReader, all_calls
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.items import Item
from deeproot.runtime.context.staging import Stager

_LINES = (MOST_LINES, MOST_LINES // 5, 4, 1)
"""Lines of one diagnostic in a note, the first that fits."""


class OpenNotes:
    """Makes the notes for one log. A pure function of the log up to the event that is asked for."""

    def __init__(self, log: EventLog, stager: Stager) -> None:
        self._log = log
        self._stager = stager
        self._reader = TurnReader(log, stager.result_text)
        self._escrow = Escrow()
        self._open_at: dict[int, list[OpenDiagnostic]] = {}
        self._made: dict[tuple[int, ...], Item] = {}
        """Notes by how many lines a diagnostic has, how many older ones are left out, and those that are in it."""

    def __call__(self, upto: int, shown: Sequence[Item], room: int) -> Item | None:
        """What was open at event `upto` and is not whole among the items `shown`, verbatim; None if nothing.

        `room`: the most tokens that it may have. If that is too few, each gets fewer lines, those that ended its run
        among them; if the fewest are too many, the oldest are only counted.
        """
        opened = self._open(upto)
        if not opened:
            return None
        text = "\n".join(item.text for item in shown)
        whole = {item.seq for item in shown}
        lost = [found for found in opened if self._is_lost(found, text, whole)]
        for most in _LINES if lost else ():
            note = self._note(lost, 0, most)
            if note.tokens <= room:
                return note
        return self._newest(lost, room)

    def _is_lost(self, found: OpenDiagnostic, text: str, whole: Collection[int]) -> bool:
        """Whether some of it stands nowhere in the prompt's `text`. Another run's equal lines do not say what was run: its
        command counts too, unless the result (of `whole`), and so its call, is still there."""
        if unsaid(self._stager.escaped(found.text), text):
            return True
        return found.seq not in whole and self._stager.escaped(found.title) not in text

    def _newest(self, lost: Sequence[OpenDiagnostic], room: int) -> Item | None:
        """As many of the newest as fit with the fewest lines."""
        fits: Item | None = None
        for first in range(len(lost) - 1, 0, -1):
            note = self._note(lost[first:], first, _LINES[-1])
            if note.tokens > room:
                break
            fits = note
        return fits

    def _open(self, upto: int) -> list[OpenDiagnostic]:
        if upto not in self._open_at:
            seqs = [event.seq for event in self._log.read(1, upto + 1)]
            self._escrow.follow(all_calls(self._reader.turns(seqs)))
            self._open_at[upto] = self._escrow.open()
        return self._open_at[upto]

    def _note(self, carried: Sequence[OpenDiagnostic], older: int, most: int) -> Item:
        seqs = [found.seq for found in carried]
        key = (most, older, *seqs)
        if key not in self._made:
            left = f"[{older} older open errors are in the archive only]\n" if older else ""
            words = escrow_text([abridged(found, most) for found in carried])
            self._made[key] = self._stager.record(left + words, seqs, "escrow")
        return self._made[key]
