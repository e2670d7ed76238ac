"""Turns: what must stay together. A tool call and its results are one group, whatever came between them."""

import sys
from collections.abc import Sequence

from deeproot.runtime.context.items import Item

_ROOT_PARTS = ("policy", "constraint", "tools", "demo", "task")
_AT_THE_TAIL = ("state", "status")
"""Shown once, the newest, wherever they were logged."""
_ORDER = {"assistant": 0, "observation": 1}
_LATER = 2
"""Whatever else a turn has comes behind its results, as it was logged: what is logged later never stands before it."""


class Group:
    """One turn: a user's message, or an assistant's message with all that followed from it."""

    __slots__ = ("anchored", "first_seq", "items", "last_seq", "tokens")

    def __init__(self, items: Sequence[Item] = ()) -> None:
        self.items: list[Item] = []
        self.tokens = 0
        self.anchored = False
        """Whether something in it must not be dropped: an anchor, or a user's own words."""
        self.first_seq = sys.maxsize
        self.last_seq = 0
        self.add(items)

    def add(self, items: Sequence[Item]) -> None:
        """Append, keeping count."""
        for item in items:
            self.items.append(item)
            self.tokens += item.tokens
            self.anchored = self.anchored or item.anchor or item.part == "turn"
            self.first_seq = min(self.first_seq, item.seq)
            self.last_seq = max(self.last_seq, item.seq)

    def discard(self, items: Sequence[Item]) -> None:
        """Take items out, keeping count."""
        gone = {item.key for item in items}
        self.items = [item for item in self.items if item.key not in gone]
        self.tokens -= sum(item.tokens for item in items)

    def swap(self, index: int, item: Item) -> None:
        """Put `item` in the place of another, keeping count."""
        self.tokens += item.tokens - self.items[index].tokens
        self.items[index] = item


def root_items(items: Sequence[Item]) -> list[Item]:
    """Policy, constraints, demonstrations and task in the order of their volatility; tool schemas are not among them."""
    ranked = [(_ROOT_PARTS.index(item.part), item) for item in items if item.part in _ROOT_PARTS]
    return [
        item for _, item in sorted(ranked, key=lambda pair: (pair[0], pair[1].seq)) if item.part != "tools"
    ]


def turn_groups(items: Sequence[Item]) -> list[Group]:
    """Everything but the root and state readings, grouped; results of a call join the group that made it.

    A result that comes after another turn began pulls the turns between into its group.
    """
    groups: list[Group] = []
    by_call: dict[str, int] = {}
    for item in items:
        if item.part in _ROOT_PARTS or item.part in _AT_THE_TAIL:
            continue
        if item.part in ("assistant", "turn", "briefing", "record") or not groups:
            groups.append(Group([item]))
        else:
            home = by_call.get(item.call_id or "", len(groups) - 1)
            if home < len(groups) - 1:
                _merge(groups, home, by_call)
            groups[-1].add([item])
        for call_id in item.call_ids:
            by_call[call_id] = len(groups) - 1
    for group in groups:
        if len(group.items) > 2:
            group.items = in_order(group.items)
    return groups


def newest_states(items: Sequence[Item]) -> list[Item]:
    """The newest reading of each name, by name."""
    newest = {item.source.uri: item for item in items if item.part == "state"}
    return [newest[uri] for uri in sorted(newest)]


def _merge(groups: list[Group], home: int, by_call: dict[str, int]) -> None:
    """Make the groups from `home` on one."""
    for later in groups[home + 1 :]:
        groups[home].add(later.items)
    del groups[home + 1 :]
    for call_id, index in by_call.items():
        by_call[call_id] = min(index, home) if index > home else index


def in_order(items: list[Item]) -> list[Item]:
    """One turn's items: results behind the message that called, nothing between a call and its results, then the rest."""
    if len([item for item in items if item.part == "assistant"]) != 1:
        return _interleaved(items)
    return sorted(items, key=lambda item: (_ORDER.get(item.part, _LATER), item.seq))


def _interleaved(items: list[Item]) -> list[Item]:
    """Several assistant messages in one group: each followed by the results of its own calls."""
    home: dict[str, int] = {}
    for item in items:
        for call_id in item.call_ids:
            home[call_id] = item.seq

    def rank(item: Item) -> tuple[int, int, int]:
        anchor = home.get(item.call_id or "", item.seq) if item.part != "assistant" else item.seq
        return (anchor, _ORDER.get(item.part, _LATER) if anchor != item.seq else 0, item.seq)

    return sorted(items, key=rank)
