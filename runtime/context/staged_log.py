"""A log as items: each event staged once, stand-ins of compactions in the place of what they cover."""

from collections.abc import Collection

from deeproot.runtime.context.compaction.apply import Applied, apply_stand_ins
from deeproot.runtime.context.compaction.open_notes import OpenNotes
from deeproot.runtime.context.compaction.stand_in import StandIn, is_stand_in, read_stand_in
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import payload_text
from deeproot.runtime.context.folding import Folder
from deeproot.runtime.context.items import Item
from deeproot.runtime.context.staging import Stager


class StagedLog:
    """The items of one log, kept up to date by `read`. `keep_symbols`: what skeletons of its files leave whole."""

    def __init__(self, log: EventLog, stager: Stager, keep_symbols: Collection[str] = ()) -> None:
        self.log = log
        self.stager = stager
        self.folder = Folder(stager, log.payload, keep=keep_symbols)
        self.open_note = OpenNotes(log, stager)
        self._items: list[Item] = []
        self._stand_ins: list[tuple[int, StandIn]] = []
        self._read = 0

    def read(self) -> None:
        """Stage what is new in the log."""
        for event in self.log.read(self._read + 1):
            payload = self.log.payload(event)
            if is_stand_in(event):
                self._stand_ins.append((event.seq, read_stand_in(event, payload_text(payload))))
            elif (item := self.stager.stage(event, payload)) is not None:
                self._items.append(item)
            self._read = event.seq

    def stand_ins(self, upto: int | None = None) -> list[StandIn]:
        """Those made up to event `upto` (None: all), in the order in which they were made."""
        return [made for seq, made in self._stand_ins if upto is None or seq <= upto]

    def applied(self, upto: int | None = None, *, draft: Collection[StandIn] = ()) -> Applied:
        """The items up to event `upto` (None: all) as a prompt may show them. `draft`: stand-ins not yet in the log."""
        items = self._items if upto is None else [item for item in self._items if item.seq <= upto]
        made = [*self.stand_ins(upto), *draft]
        if not made:
            return Applied(list(items), {}, {})
        return apply_stand_ins(items, made, self.stager)
