"""Looks at a compaction before it is swapped in: what must not be lost, is there; what must shrink, shrank."""

from collections import Counter
from collections.abc import Sequence

from deeproot.runtime.context.compaction.draft import Draft
from deeproot.runtime.context.compaction.escrow import unsaid
from deeproot.runtime.context.items import Item

_PINNED = ("policy", "constraint", "tools", "demo", "task", "turn", "skill", "briefing")


def faults(before: Sequence[Item], draft: Draft) -> list[str]:
    """Why the draft must not be swapped in; nothing if it may. `before`: the items of the prompt as it is."""
    after = draft.applied.items
    found = [*_lost(before, after, set(draft.applied.shortened)), *_split(before, after), *_unsaid(draft)]
    if draft.made and sum(item.tokens for item in after) >= sum(item.tokens for item in before):
        found.append("it would not be shorter")
    return found


def _lost(before: Sequence[Item], after: Sequence[Item], shortened: set[int]) -> list[str]:
    """Instructions, users' words and anchors, which must stand there unchanged; a huge one may be shortened."""
    texts = {item.key: item.text for item in after}
    return [
        f"{item.part} of event {item.seq} is lost"
        for item in before
        if (item.part in _PINNED or item.anchor)
        and texts.get(item.key) != item.text
        and not (item.key in texts and item.seq in shortened)
    ]


def _split(before: Sequence[Item], after: Sequence[Item]) -> list[str]:
    """Results without their call, and calls without the result that they had. Some models use an id more than once."""
    was, now = _unpaired(before), _unpaired(after)
    return [
        f"call {call_id} is split from its result" for call_id in sorted(now) if now[call_id] != was[call_id]
    ]


def _unpaired(items: Sequence[Item]) -> Counter[str]:
    """Of each call id, how many more calls there are than results."""
    more: Counter[str] = Counter()
    for item in items:
        if item.part == "assistant":
            more.update(item.call_ids)
        elif item.part == "observation" and item.call_id is not None:
            more[item.call_id] -= 1
    return more


def _unsaid(draft: Draft) -> list[str]:
    """Open diagnostics of results that were replaced, of which a line is nowhere in the prompt."""
    stager = draft.staged.stager
    text = "\n".join(item.text for item in draft.applied.items)
    replaced = {seq for record in draft.applied.records.values() for seq in record.covers} | set(
        draft.applied.shortened
    )
    return [
        f"a line of the open diagnostic of event {seq} is lost: {line[:80]}"
        for seq, found in draft.open.items()
        if seq in replaced
        for line in unsaid(stager.escaped(found.text), text)
    ]
