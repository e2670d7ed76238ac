"""Output that was there before -> a tombstone that names the first."""

from deeproot.runtime.context.filters.base import Drop, FilterContext, FilterResult


class RepeatFilter:
    """Keeps the first of equal outputs and puts a tombstone with count and time difference for the later ones.

    An output that a later change superseded is never pointed to: the pointer would lead to a pointer.
    """

    name = "repeats"

    def __init__(self, *, window: int = 50) -> None:
        """`window`: how many observations back the first may lie."""
        if window < 1:
            raise ValueError(f"window is {window}; give at least 1")
        self._window = window

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        """The text, or the tombstone where an equal text stands in full close enough before."""
        if ctx.index is None:
            return FilterResult(text)
        log, index = ctx.log, ctx.index
        shows = log[index].action.shows
        equal = [i for i in log.same_text(index) if i <= index and log[i].action.shows == shows]
        stand = [i for i in equal if i < index and not self._gone(ctx, i, index)]
        if not stand:
            return FilterResult(text)
        first = self._first(stand, index)
        if first is None:
            return FilterResult(text)
        count = sum(first <= i <= index for i in equal)
        tombstone = _tombstone(ctx, first, count)
        if len(tombstone) >= len(text):
            return FilterResult(text)
        return FilterResult(tombstone, (Drop("repeated output", 1, text.count("\n") + 1, 1),), exempt=True)

    def _gone(self, ctx: FilterContext, earlier: int, index: int) -> bool:
        by = ctx.log.superseded_by(earlier)
        return by is not None and by <= index

    def _first(self, stand: list[int], index: int) -> int | None:
        """The observation that is kept in full: each within the window of the kept one before it is a tombstone."""
        kept = stand[0]
        for i in [*stand[1:], index]:
            if i - kept > self._window:
                if i == index:
                    return None
                kept = i
        return kept


def _tombstone(ctx: FilterContext, first: int, count: int) -> str:
    log = ctx.log
    assert ctx.index is not None
    now, then = log[ctx.index].time, log[first].time
    later = f", {now - then:.3g} s later" if now is not None and then is not None else ""
    return f"[same output as #{log[first].seq}: time {count}{later}]"
