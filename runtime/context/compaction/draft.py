"""A compaction while it is being planned: nothing of it is in the log yet."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from deeproot.runtime.context.compaction.apply import Applied
from deeproot.runtime.context.compaction.escrow import Escrow, OpenDiagnostic
from deeproot.runtime.context.compaction.stand_in import StandIn
from deeproot.runtime.context.compaction.turns import Turn, TurnReader, all_calls
from deeproot.runtime.context.grouping import Group, turn_groups
from deeproot.runtime.context.items import Item, PlanContext
from deeproot.runtime.context.staged_log import StagedLog

_NEVER_COVERED = ("artifact", "state", "turn", "status_kept", "skill", "briefing")


class Draft:
    """What the prompt would be with the stand-ins made so far.

    `size_of`: tokens of a prompt of these items. `context`: what policies see. `keep_turns`: newest turns that are not
    touched. `target`: tokens to come down to; `limit`: to come below. `escrow`: what it has read of this log is not read again.
    """

    def __init__(
        self,
        staged: StagedLog,
        context: PlanContext,
        size_of: Callable[[Sequence[Item]], int],
        escrow: Escrow,
        *,
        keep_turns: int,
        target: int,
        limit: int,
    ) -> None:
        self.staged = staged
        self.context = context
        self.target = target
        self.limit = limit
        self.made: list[StandIn] = []
        self._size_of = size_of
        self._keep = max(1, keep_turns)
        self._applied = staged.applied()
        self.size = size_of(self._applied.items)
        self.reader = TurnReader(staged.log, staged.stager.result_text)
        self.now = len(staged.log)
        self._escrow = escrow

    @property
    def applied(self) -> Applied:
        """The items with all stand-ins, those of the draft included."""
        return self._applied

    @property
    def done(self) -> bool:
        """Whether it is small enough."""
        return self.size <= self.target

    def add(self, stand_ins: Sequence[StandIn]) -> bool:
        """Take stand-ins into the draft if the prompt shrinks by them; whether it did."""
        if not stand_ins:
            return False
        applied = self.staged.applied(draft=[*self.made, *stand_ins])
        size = self._size_of(applied.items)
        if size >= self.size:
            return False
        self.made += stand_ins
        self._applied, self.size = applied, size
        return True

    def groups(self) -> list[Group]:
        """The turns, newest last."""
        return turn_groups(self._applied.items)

    def old(self) -> list[Group]:
        """All turns but the newest, which are not touched."""
        groups = self.groups()
        return groups[: max(0, len(groups) - self._keep)]

    def loose(self) -> list[Group]:
        """Old turns without anchors and without a user's words."""
        return [group for group in self.old() if not group.anchored and self.covers([group])]

    def compactable(self) -> int:
        """Tokens of the turns that could be replaced."""
        return sum(group.tokens for group in self.loose())

    def covers(self, groups: Sequence[Group]) -> tuple[int, ...]:
        """Numbers of the events that these turns show, those behind records included; files in work stay apart."""
        seqs: set[int] = set()
        for group in groups:
            for item in group.items:
                record = self._applied.records.get(item.key)
                if record is not None:
                    seqs.update(record.covers)
                elif item.part not in _NEVER_COVERED:
                    seqs.add(item.seq)
        return tuple(sorted(seqs))

    def turns(self, covers: Sequence[int]) -> tuple[Turn, ...]:
        """What the raw log says of some events."""
        return tuple(self.reader.turns(covers))

    def open_among(self, covers: Sequence[int]) -> list[OpenDiagnostic]:
        """Open diagnostics whose results are among these events."""
        wanted = set(covers)
        return [found for seq, found in sorted(self.open.items()) if seq in wanted]

    @cached_property
    def open(self) -> Mapping[int, OpenDiagnostic]:
        """Diagnostics that no later run has closed, by the event of their result."""
        every = [event.seq for event in self.staged.log.read()]
        self._escrow.follow(all_calls(self.reader.turns(every)))
        return {found.seq: found for found in self._escrow.open()}
