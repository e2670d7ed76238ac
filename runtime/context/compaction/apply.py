"""Items of a log with its stand-ins in the place of what they cover."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deeproot.runtime.context.compaction.stand_in import Level, StandIn
from deeproot.runtime.context.items import Item
from deeproot.runtime.context.staging import Stager
from deeproot.runtime.context.thinking import fields_without_thinking


@dataclass(frozen=True, slots=True)
class Applied:
    """`items` in the log's order; `records`: the stand-ins of whole turns among them, by item key."""

    items: list[Item]
    records: Mapping[str, StandIn]
    shortened: Mapping[int, StandIn]
    """Stand-ins of single messages that are in use, by event."""


def apply_stand_ins(items: Iterable[Item], stand_ins: Sequence[StandIn], stager: Stager) -> Applied:
    """Put stand-ins in their places; of two for the same event the later one holds. A pure function.

    A record stands where the first event that it covers stood; for what was evicted nothing does. Where a pointer led to an output that is no longer
    there, the output itself is shown again.
    """
    records = _live(stand_ins)
    home: dict[int, StandIn] = {}
    for record in records:
        home.update(dict.fromkeys(record.covers, record))
    shortened = {s.covers[0]: s for s in stand_ins if s.level.in_place and s.covers[0] not in home}
    made: list[Item] = []
    by_key: dict[str, StandIn] = {}
    placed: set[int] = set()
    for item in items:
        covering = home.get(item.seq)
        if covering is None:
            made.append(_shortened(item, shortened.get(item.seq), stager))
        elif id(covering) not in placed:
            placed.add(id(covering))
            if covering.level is Level.EVICTED:
                continue
            record_item = stager.record(covering.text, covering.covers, covering.by)
            by_key[record_item.key] = covering
            made.append(record_item)
    return Applied(_mended(made, {*home, *shortened}, shortened, stager), by_key, shortened)


def _live(stand_ins: Sequence[StandIn]) -> list[StandIn]:
    """Records that no later one has taken the place of."""
    live: list[StandIn] = []
    for stand_in in stand_ins:
        if not stand_in.level.in_place:
            covered = set(stand_in.covers)
            live = [earlier for earlier in live if covered.isdisjoint(earlier.covers)]
            live.append(stand_in)
    return live


def _shortened(item: Item, stand_in: StandIn | None, stager: Stager) -> Item:
    """The same message with the words that were frozen for it; reasoning goes with the words that it led to."""
    if stand_in is None:
        return item
    made = stager.resized(item, stand_in.text, fields_without_thinking(item.fields))
    return replace(made, notes=(*item.notes, f"{stand_in.level} by {stand_in.by}"))


def _mended(
    items: list[Item], gone: Collection[int], shortened: Mapping[int, StandIn], stager: Stager
) -> list[Item]:
    """The first pointer to what is gone becomes the output itself, later ones point to that."""
    if not gone:
        return items
    homes: dict[int, int] = {}
    for i, item in enumerate(items):
        repeat = stager.repeats.get(item.key)
        if repeat is not None and repeat.same_as in gone and item.seq not in shortened:
            items[i] = repeat.stand_in(homes.setdefault(repeat.same_as, item.seq))
    return items
