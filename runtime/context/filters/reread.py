"""A file read again -> a unified diff against the first view of it."""

import difflib
import re
from weakref import WeakKeyDictionary

from deeproot.runtime.context.filters.base import Drop, FilterContext, FilterResult
from deeproot.runtime.context.filters.observation import ObservationLog

_NUMBERED = re.compile(r"\s*\d+[\t:] ?", re.ASCII)


class RereadDiffFilter:
    """Keeps a file's first view and shows each later one as `diff -U3` against it.

    Use it instead of `SupersededReadFilter`: that one gives up the first view, which is this one's base. The first
    view never changes, so a prompt that holds it keeps its prefix. A view that differs too much (another window of
    the file, or a rewrite) stays whole and is the base of the views after it.
    """

    name = "reread diffs"

    def __init__(self, *, context: int = 3, most: float = 0.5) -> None:
        """`context`: unchanged lines around a change. `most`: longest diff, as a share of the view."""
        if context < 0 or not 0 < most <= 1:
            raise ValueError(
                f"context is {context} and most is {most}; give at least 0, and a share in (0, 1]"
            )
        self._context, self._most = context, most
        self._bases: WeakKeyDictionary[ObservationLog, dict[int, tuple[int, str | None]]] = (
            WeakKeyDictionary()
        )
        """Of each view that was asked for: its base, and its diff against that unless it is the base itself."""

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        """The text, or its diff against the view that stands for the file."""
        if ctx.index is None or ctx.log[ctx.index].action.shows is None:
            return FilterResult(text)
        diff = self._shown(ctx.log, ctx.index)
        if diff is None:
            return FilterResult(text)
        lines = text.count("\n") + 1
        return FilterResult(diff, (Drop("unchanged view", 1, lines, diff.count("\n") + 1),), exempt=True)

    def _shown(self, log: ObservationLog, index: int) -> str | None:
        """The diff that stands for a view; None for one that is a base. Each view is compared once."""
        known = self._bases.setdefault(log, {})
        views = log.views(index)
        first = len(views)
        while first and views[first - 1] not in known:
            first -= 1
        base = known[views[first - 1]][0] if first else None
        for i in views[first:]:
            diff = None if base is None else self._diff(log, base, i)
            if base is None or diff is None:
                base = i
            known[i] = (base, diff)
        return known[index][1]

    def _diff(self, log: ObservationLog, base: int, index: int) -> str | None:
        """The diff as text, None where it would be too long to be worth it."""
        text = log[index].text
        old, new = _plain_lines(log[base].text), _plain_lines(text)
        head = f"[{log[index].action.shows} as in #{log[base].seq}"
        if old == new:
            tombstone = f"{head}, unchanged]"
            return tombstone if len(tombstone) < len(text) else None
        rows = list(difflib.unified_diff(old, new, lineterm="", n=self._context))[2:]
        diff = "\n".join([f"{head}, but for:]", *rows])
        return diff if len(diff) <= self._most * len(text) else None


def _plain_lines(text: str) -> list[str]:
    """Lines without the numbers that `cat -n` and editors put before them, which a shift would make all differ."""
    lines = text.replace("\r\n", "\n").split("\n")
    body = [line for line in lines if line.strip()]
    if len(body) > 2 and all(_NUMBERED.match(line) for line in body):
        return [_NUMBERED.sub("", line, count=1) for line in lines]
    return lines
