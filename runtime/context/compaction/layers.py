"""What frees room without a model, cheapest first. Each decision is frozen: a stand-in is never made twice."""

from dataclasses import dataclass
from typing import Protocol

from deeproot.runtime.context.compaction.draft import Draft
from deeproot.runtime.context.compaction.escrow import escrow_text
from deeproot.runtime.context.compaction.stand_in import Level, StandIn
from deeproot.runtime.context.events import payload_text
from deeproot.runtime.context.items import Item
from deeproot.runtime.context.preview import preview
from deeproot.runtime.context.thinking import has_thinking, without_thinking


class Layer(Protocol):
    """One way of freeing room."""

    @property
    def name(self) -> str:
        """How reports call it."""
        ...

    def apply(self, draft: Draft) -> bool:
        """Add stand-ins to the draft; whether it shrank."""
        ...


@dataclass(frozen=True, slots=True)
class Filters:
    """Views that an edit made stale become pointers; views of source files become skeletons."""

    fold_over: int = 400

    @property
    def name(self) -> str:
        return "filters"

    def apply(self, draft: Draft) -> bool:
        made = []
        for item in observations(draft):
            if item.seq in draft.open:
                continue
            stale = draft.context.replacements.get(item.key)
            if stale is not None and stale.since <= draft.now:
                made.append(StandIn(Level.SHORTENED, (item.seq,), stale.item.text, "superseded read"))
            elif item.tokens > self.fold_over and (folded := draft.context.fold(item)) is not None:
                made.append(StandIn(Level.SHORTENED, (item.seq,), folded.text, "skeleton"))
        return draft.add(made)


@dataclass(frozen=True, slots=True)
class ResultBudget:
    """Long results of older turns, and files in work, keep head, failing lines and tail.

    `tokens`: of an older result. `share`: of the target; a result of the newest turns that takes more than that keeps
    half of it, so that a single huge one never fills the prompt.
    """

    tokens: int = 600
    share: float = 0.5

    @property
    def name(self) -> str:
        return "result budget"

    def apply(self, draft: Draft) -> bool:
        most = max(1, int(draft.target * self.share))
        taken = set(draft.applied.shortened)
        made = [
            self._preview(item, self.tokens, draft)
            for item in observations(draft)
            if item.tokens > self.tokens and item.seq not in taken
        ]
        newest = [item for group in draft.groups() for item in group.items]
        taken |= {stand_in.covers[0] for stand_in in made if stand_in is not None}
        made += [
            self._preview(item, max(1, most // 2), draft)
            for item in newest
            if item.part in ("observation", "artifact") and item.tokens > most and item.seq not in taken
        ]
        return draft.add([stand_in for stand_in in made if stand_in is not None])

    def _preview(self, item: Item, tokens: int, draft: Draft) -> StandIn | None:
        stager = draft.staged.stager
        text = stager.result_text(item.seq)
        if text is None:
            text = payload_text(draft.staged.log.payload(stager.event_of(item)))
        short, notes = preview(text, tokens, draft.context.count, item.source.payload_hash)
        if not notes:
            return None
        opened = escrow_text(draft.open_among([item.seq]))
        words = (
            f"{short}\n{opened}"
            if opened and not all(line in short for line in opened.split("\n")[2:])
            else short
        )
        return StandIn(Level.SHORTENED, (item.seq,), stager.stand_in(item, words, "").text, self.name)


@dataclass(frozen=True, slots=True)
class DropNoise:
    """The reasoning behind older messages, which led to what they say; statuses that a later one followed."""

    @property
    def name(self) -> str:
        return "noise"

    def apply(self, draft: Draft) -> bool:
        made = []
        for group in draft.old():
            for item in group.items:
                if item.part != "assistant" or item.anchor:
                    continue
                if has_thinking(item.text, item.fields):
                    text = without_thinking(item.text)
                    made.append(StandIn(Level.SHORTENED, (item.seq,), text, self.name))
        return draft.add(made + self._old_statuses(draft))

    def _old_statuses(self, draft: Draft) -> list[StandIn]:
        items = [item for group in draft.old() for item in group.items if item.part == "status_kept"]
        newest = max((item.seq for item in draft.applied.items if item.part == "status_kept"), default=0)
        return [StandIn(Level.EVICTED, (item.seq,), "", self.name) for item in items if item.seq < newest]


@dataclass(frozen=True, slots=True)
class ClearResults:
    """Older results become pointers to the archive, the newest of them first: what stands before keeps its cache.

    Open diagnostics stay where they are, verbatim. `over`: shorter results stay.
    """

    over: int = 100

    @property
    def name(self) -> str:
        return "cleared results"

    def apply(self, draft: Draft) -> bool:
        made: list[StandIn] = []
        size = draft.size
        for item in reversed(observations(draft)):
            if size <= draft.target:
                break
            if item.tokens <= self.over:
                continue
            opened = escrow_text(draft.open_among([item.seq]))
            pointer = f"[cleared; the archive has it as {item.source.payload_hash[:16]}]"
            words = f"{pointer}\n{opened}" if opened else pointer
            short = draft.staged.stager.stand_in(item, words, "")
            if short.tokens < item.tokens:
                size -= item.tokens - short.tokens
                made.append(StandIn(Level.CLEARED, (item.seq,), short.text, self.name))
        return draft.add(made)


def default_layers() -> tuple[Layer, ...]:
    """All of them, in the order of what they take away."""
    return (Filters(), ResultBudget(), DropNoise(), ClearResults())


def gentle_layers() -> tuple[Layer, ...]:
    """Without clearing: what is over then goes to the strategy, which keeps more of a result than a pointer."""
    return (Filters(), ResultBudget(), DropNoise())


def observations(draft: Draft) -> list[Item]:
    """Tool results of older turns that no stand-in stands for yet and that are not pinned, oldest first."""
    frozen = draft.applied.shortened
    return [
        item
        for group in draft.old()
        for item in group.items
        if item.part == "observation"
        and not item.anchor
        and (item.seq not in frozen or _may_shrink(frozen[item.seq]))
    ]


def _may_shrink(stand_in: StandIn) -> bool:
    """A preview may still be cleared; a pointer or a summary is final."""
    return stand_in.level is Level.SHORTENED and stand_in.by == ResultBudget().name
