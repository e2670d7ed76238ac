"""The layout that this project is about: root, trunk, leaf; settled in batches, shrunk in batches."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deeproot.runtime.context.budget import Budget
from deeproot.runtime.context.frozen_tools import frozen_tools
from deeproot.runtime.context.grouping import Group, in_order, turn_groups
from deeproot.runtime.context.host_items import archived_pointer, reminder
from deeproot.runtime.context.items import Drop, Item, Placement, Plan, PlanContext
from deeproot.runtime.context.policies import as_budget, dropped, place_lost_status, place_root, place_status
from deeproot.runtime.context.repeats import Repeats
from deeproot.runtime.context.segments import Zone


@dataclass(frozen=True, slots=True)
class ThreeZones:
    """Root: policy, constraints, tools, task. Trunk: files in work, older turns. Leaf: newest turns, status, reminder.

    New turns are only appended until the leaf is over its share; then all but the newest settle into the trunk
    (their bytes unchanged) and the files in work are staged as they now are. At the high water mark superseded
    reads shrink to pointers, statuses that a later one followed go, and the oldest turns without anchors go to the archive, in one batch, down to the low
    mark; errors in them that were open then stay, verbatim, behind the archive's pointer. Nothing else ever changes a
    byte before the leaf, but that those errors are cut down where the budget would be passed otherwise.

    `budget`: tokens of one call, or a `Budget`. `keep_turns`: newest turns that never settle or drop.
    `reminder_tokens`: the most that the reminder may have; 0: none. `fold_over`: views of source files over that many
    tokens are skeletons in the trunk (None: never): files in work when they are staged there, what tools showed when
    a batch rewrites the trunk.
    """

    budget: int | Budget
    keep_turns: int = 3
    reminder_tokens: int = 100
    fold_over: int | None = 2000

    @property
    def name(self) -> str:
        return "three_zones"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        budget = as_budget(self.budget)
        tools, tools_item, notes = frozen_tools(items)
        root = place_root(items)
        constraints = [placed.item for placed in root if placed.item.part == "constraint"]
        last = reminder(constraints, context, self.reminder_tokens) if self.reminder_tokens else None
        tail = place_status(items, context)
        if last is not None:
            tail.append(Placement(last, Zone.LEAF, "key constraints, at the very end"))
        fixed = context.fixed + sum(p.item.tokens for p in (*root, *tail))
        budget.check_fixed(fixed)
        fold = _Fold(budget, max(1, self.keep_turns), fixed, context, self.fold_over)
        groups = turn_groups(items)
        for group in groups:
            fold.take(group)
        turns = [*fold.trunk(), *fold.leaf()]
        placements = [*root, *turns, *place_lost_status(items, turns, context), *tail]
        limits = {zone: budget.zone_limit(zone) for zone in Zone}
        return Plan(
            tuple(placements),
            tools,
            tools_item,
            tuple(fold.drops()),
            notes + fold.notes(),
            budget.total,
            limits,
        )


class _Fold:
    """Goes through the turns as the calls did, so that every decision falls at the turn where it was due."""

    def __init__(
        self, budget: Budget, keep: int, fixed: int, context: PlanContext, fold_over: int | None
    ) -> None:
        self._budget = budget
        self._keep = keep
        self._fixed = fixed
        self._context = context
        self._fold_over = fold_over
        self._groups: list[Group] = []
        """Turns still staged, files in work not among their items."""
        self._settled = 0
        """How many of them are in the trunk."""
        self._archived: list[Group] = []
        self._archived_tokens = 0
        self._archived_from = sys.maxsize
        self._archived_to = 0
        self._pointer: Item | None = None
        self._open: Item | None = None
        """What was open in archived turns at the last batch, as far as there is room."""
        self._now = 0
        """The newest event taken, those behind records included."""
        self._staged: dict[str, Item] = {}
        """Files in work as the trunk shows them."""
        self._fresh: dict[str, tuple[Item, Group]] = {}
        """Newer versions, shown in the turn that brought them until the next batch."""
        self._versions: dict[str, int] = {}
        self._evicted: dict[str, Item] = {}
        self._old_statuses: list[Item] = []
        self._batches = 0
        self._tokens = 0
        """Of `_groups`."""
        self._leaf_tokens = 0
        self._repeats = Repeats(context)

    def take(self, group: Group) -> None:
        """Append one turn, after making room for it if need be."""
        files = [item for item in group.items if item.part == "artifact"]
        turn = Group([item for item in group.items if item.part != "artifact"]) if files else group
        self._now = max(self._now, group.last_seq, *[item.newest for item in group.items])
        self._repeats.mend(turn, group.last_seq)
        if turn.items or not self._groups:
            self._groups.append(turn)
            self._tokens += turn.tokens
            self._leaf_tokens += turn.tokens
        for item in files:
            self._versions[item.source.uri] = self._versions.get(item.source.uri, 0) + 1
            self._fresh[item.source.uri] = (item, self._groups[-1])
        if self._leaf_tokens + self._fresh_tokens() > self._budget.zone_limit(Zone.LEAF):
            self._settle()
        if self._total() >= self._budget.high_tokens:
            self._compact(group.last_seq)
        elif self._open is not None and self._total() + self._open.tokens > self._budget.total:
            self._carry_open()

    def trunk(self) -> list[Placement]:
        placed = []
        if self._pointer is not None:
            placed.append(Placement(self._pointer, Zone.TRUNK, "says what was archived"))
        if self._open is not None:
            placed.append(Placement(self._open, Zone.TRUNK, "open errors of archived turns"))
        files = sorted(self._staged, key=self._volatility)
        placed += [Placement(self._staged[uri], Zone.TRUNK, "file in work") for uri in files]
        for group in self._groups[: self._settled]:
            placed += [
                Placement(i, Zone.TRUNK, "anchor" if i.anchor else "older turn, settled") for i in group.items
            ]
        return placed

    def leaf(self) -> list[Placement]:
        placed = []
        for group in self._groups[self._settled :]:
            fresh = [item for item, home in self._fresh.values() if home is group]
            for item in in_order([*group.items, *fresh]) if fresh else group.items:
                why = "file in work, new version" if item.part == "artifact" else "newest turns"
                placed.append(Placement(item, Zone.LEAF, "anchor" if item.anchor else why))
        return placed

    def drops(self) -> list[Drop]:
        made = [d for group in self._archived for d in dropped(group, "archived at the high water mark")]
        gone = [(item, "files over the trunk's share") for item in self._evicted.values()]
        gone += [(item, "a status that a later one followed") for item in self._old_statuses]
        return made + [Drop(i.key, i.seq, i.tokens, why, i.source.payload_hash) for i, why in gone]

    def notes(self) -> tuple[str, ...]:
        if not self._batches:
            return ()
        return (
            f"{self._batches} batch compaction(s), from {self._budget.high_tokens} down to {self._budget.low_tokens}",
        )

    def _volatility(self, uri: str) -> tuple[int, int, str]:
        return (self._versions[uri], self._staged[uri].seq, uri)

    def _fresh_tokens(self) -> int:
        return sum([item.tokens for item, _ in self._fresh.values()]) if self._fresh else 0

    def _total(self) -> int:
        files = sum([item.tokens for item in self._staged.values()]) if self._staged else 0
        pointer = self._pointer.tokens if self._pointer is not None else 0
        return self._fixed + pointer + self._tokens + files + self._fresh_tokens()

    def _settle(self) -> None:
        """The turns but the newest become trunk, until the leaf is down to its lower share; files are staged anew."""
        target = self._budget.zone_target(Zone.LEAF)
        before = self._settled
        while self._leaf_tokens > target and len(self._groups) - self._settled > self._keep:
            self._leaf_tokens -= self._groups[self._settled].tokens
            self._settled += 1
        if self._settled == before:
            return
        for uri, (item, _) in self._fresh.items():
            self._staged[uri] = self._folded(item) or item
            self._evicted.pop(uri, None)
        self._fresh = {}
        self._evict_files()

    def _folded(self, item: Item) -> Item | None:
        """The skeleton to stage for a long view of a source file; None if it stays as it is."""
        if self._fold_over is None or item.tokens <= self._fold_over:
            return None
        return self._context.fold(item)

    def _evict_files(self) -> None:
        """Files over the trunk's share go, the one unchanged for longest first."""
        limit = self._budget.zone_limit(Zone.TRUNK)
        by_age = sorted(self._staged.values(), key=lambda item: item.seq)
        total = sum(item.tokens for item in by_age)
        for item in by_age:
            if total <= limit:
                break
            total -= item.tokens
            self._evicted[item.source.uri] = self._staged.pop(item.source.uri)

    def _compact(self, now: int) -> None:
        """One batch: superseded reads to pointers, long views to skeletons, then the oldest turns to the archive, down to the low mark."""
        self._batches += 1
        self._settle()
        for group in self._groups:
            for i, item in enumerate(group.items):
                shorter = self._context.replacements.get(item.key)
                if shorter is not None and shorter.since <= now:
                    group.swap(i, replace(shorter.item, anchor=item.anchor))
        self._drop_old_statuses()
        self._fold_views()
        self._count()
        while self._archive_down_to_low():
            gone = {item.seq for group in self._archived for item in group.items}
            self._repeats = Repeats(self._context, gone)
            for group in self._groups:
                self._repeats.mend(group, now)
            self._fold_views()
            self._count()

    def _drop_old_statuses(self) -> None:
        """All but the newest of those that stand where they were said."""
        newest = max((i.seq for g in self._groups for i in g.items if i.part == "status_kept"), default=0)
        for group in self._groups:
            old = [i for i in group.items if i.part == "status_kept" and i.seq < newest]
            group.discard(old)
            self._old_statuses += old

    def _fold_views(self) -> None:
        for group in self._groups[: self._settled]:
            for i, item in enumerate(group.items):
                if (skeleton := self._folded(item)) is not None:
                    group.swap(i, skeleton)

    def _archive_down_to_low(self) -> bool:
        """Archive the oldest turns; whether there were any. What pointed to them may need room again."""
        before = len(self._archived)
        total = self._total()
        newest = max(0, len(self._groups) - self._keep)
        kept: list[Group] = []
        kept_settled = 0
        for i, group in enumerate(self._groups):
            if i < newest and group.items and not group.anchored and total > self._budget.low_tokens:
                total -= group.tokens
                self._archived.append(group)
                self._archived_tokens += group.tokens
                self._archived_from = min(self._archived_from, group.first_seq)
                self._archived_to = max(self._archived_to, group.last_seq)
            else:
                kept.append(group)
                kept_settled += i < self._settled
        self._groups = kept
        self._settled = kept_settled
        self._count()
        if self._archived:
            self._pointer = archived_pointer(
                self._archived_from,
                self._archived_to,
                len(self._archived),
                self._archived_tokens,
                self._context,
            )
            self._carry_open()
        return len(self._archived) > before

    def _carry_open(self) -> None:
        """What is open now and no longer shown is noted, as far as the budget has room.

        The note is no part of the total: nothing is archived for it, and it gives way to what comes.
        """
        shown = [item for group in self._groups for item in group.items]
        self._open = self._context.open_note(self._now, shown, self._budget.total - self._total())

    def _count(self) -> None:
        self._tokens = sum(group.tokens for group in self._groups)
        self._leaf_tokens = sum(group.tokens for group in self._groups[self._settled :])
