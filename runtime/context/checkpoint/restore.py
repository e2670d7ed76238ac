"""From a checkpoint to a working set: pinned root from the log, the record, the newest turns before it, and what follows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.context.budget import Budget
from deeproot.runtime.context.checkpoint.files import Files, changed
from deeproot.runtime.context.checkpoint.make import AuditedCheckpoint
from deeproot.runtime.context.checkpoint.render import record_text
from deeproot.runtime.context.control_text import control_tokens
from deeproot.runtime.context.envelope import Envelopes
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.frozen_tools import frozen_tools
from deeproot.runtime.context.grouping import Group, turn_groups
from deeproot.runtime.context.host_items import host_item, reminder
from deeproot.runtime.context.items import Item, Placement, Plan, PlanContext
from deeproot.runtime.context.policies import dropped, place_lost_status, place_root, place_status
from deeproot.runtime.context.repeats import Repeats
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenizer import Tokenizer
from deeproot.runtime.context.working_set import WorkingSet


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """A layout that starts from a checkpoint. `record`: its text, as `record_text` gives it; `upto`: its last event.

    Root: policy, constraints, tools and task, all from the log and none from the checkpoint. Trunk: the record, then
    what is never dropped (anchors, a user's words). Leaf: the last `tail_turns` turns before the checkpoint, all that
    came after it, status, reminder. New turns are only appended, so the prefix stays.
    """

    record: str
    upto: int
    tail_turns: int = 3
    budget: int | None = None
    reminder_tokens: int = 100

    def __post_init__(self) -> None:
        if self.tail_turns < 0:
            raise ValueError(f"tail_turns is {self.tail_turns}; give 0 or more, usually 2 to 4")

    @property
    def name(self) -> str:
        return "from_checkpoint"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        tools, tools_item, notes = frozen_tools(items)
        root = place_root(items)
        tail = place_status(items, context)
        constraints = [placed.item for placed in root if placed.item.part == "constraint"]
        last = reminder(constraints, context, self.reminder_tokens) if self.reminder_tokens else None
        if last is not None:
            tail.append(Placement(last, Zone.LEAF, "key constraints, at the very end"))
        if self.budget is not None:
            fixed = context.fixed + sum(placed.item.tokens for placed in (*root, *tail))
            Budget(self.budget).check_fixed(fixed)
        kept, newest, gone = self._split(turn_groups(items))
        self._mend(kept + newest, gone, context)
        record = host_item("archived", self.record, context, key="checkpoint")
        trunk = [Placement(record, Zone.TRUNK, f"checkpoint after event {self.upto}")]
        trunk += [
            Placement(i, Zone.TRUNK, "anchor" if i.anchor else "kept: the user's words")
            for g in kept
            for i in g.items
        ]
        leaf = [Placement(item, Zone.LEAF, "newest turns") for group in newest for item in group.items]
        drops = tuple(drop for group in gone for drop in dropped(group, "in the checkpoint and the archive"))
        tail = [*place_lost_status(items, (*trunk, *leaf), context), *tail]
        return Plan((*root, *trunk, *leaf, *tail), tools, tools_item, drops, notes, self.budget)

    def _split(self, groups: Sequence[Group]) -> tuple[list[Group], list[Group], list[Group]]:
        """What stays of the turns that the checkpoint covers, the turns that are staged as they are, and what goes."""
        covered = [group for group in groups if group.last_seq <= self.upto]
        old = covered[: max(0, len(covered) - self.tail_turns)]
        gone = {id(group) for group in old}
        newest = [group for group in groups if id(group) not in gone]
        return [g for g in old if g.anchored], newest, [g for g in old if not g.anchored]

    def _mend(self, staged: Sequence[Group], gone: Sequence[Group], context: PlanContext) -> None:
        """Outputs that pointed to one that is gone are shown in full."""
        repeats = Repeats(context, gone={item.seq for group in gone for item in group.items})
        for group in staged:
            repeats.mend(group, group.last_seq)


def restore(
    log: EventLog,
    audited: AuditedCheckpoint,
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    files: Files | None = None,
    tail_turns: int = 3,
    budget: int | None = None,
    **options: Any,
) -> WorkingSet:
    """A working set that goes on from a checkpoint; `assemble(log)` gives the context of the next call.

    `files`: the workspace, to name artifacts that have changed since (None: it is not asked). `budget`: tokens of one
    call. `options` go to `WorkingSet`. Constraints and goal come from the log, whatever the checkpoint says.
    """
    stale: Collection[str] = ()
    if files is not None:
        stale = changed({a.path: a.hash for a in audited.checkpoint.artifacts}, files)
    envelopes = Envelopes(token.text for token in control_tokens(tokenizer))
    record = record_text(log, audited, envelopes, stale)
    policy = FromCheckpoint(record, audited.checkpoint.upto, tail_turns, budget)
    return WorkingSet(policy=policy, tokenizer=tokenizer, template=template, **options)
