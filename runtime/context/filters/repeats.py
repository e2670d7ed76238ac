"""Output that was there before -> a tombstone that names the first."""

from bisect import bisect_left, bisect_right

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
        equal = log.same(index)
        start, end = bisect_left(equal, log.last_change(index)), bisect_left(equal, index)
        at = self._kept(equal, start, end)
        if at == end:
            return FilterResult(text)
        first, count = equal[at], end - at + 1
        tombstone = _tombstone(ctx, first, count)
        if len(tombstone) >= len(text):
            return FilterResult(text)
        drop = Drop("repeated output", 1, text.count("\n") + 1, 1)
        return FilterResult(tombstone, (drop,), exempt=True, same_as=log[first].seq)

    def _kept(self, equal: list[int], at: int, end: int) -> int:
        """Which of `equal[at : end + 1]` stands in full for the last: each within the window of the one kept before it
        is a tombstone, the next one is kept."""
        while (after := bisect_right(equal, equal[at] + self._window)) <= end:
            at = after
        return at


def _tombstone(ctx: FilterContext, first: int, count: int) -> str:
    log = ctx.log
    assert ctx.index is not None
    now, then = log[ctx.index].time, log[first].time
    later = f", {now - then:.3g} s later" if now is not None and then is not None else ""
    return f"[same output as #{log[first].seq}: time {count}{later}]"
