"""A view of a file that a later action changed -> a pointer to that change."""

from deeproot.runtime.context.filters.base import Drop, FilterContext, FilterResult


class SupersededReadFilter:
    """Puts a pointer to the edit in place of a view that the edit made stale."""

    name = "superseded reads"

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        """The text, or a pointer where it shows a file that was changed since."""
        if ctx.index is None:
            return FilterResult(text)
        by = ctx.log.superseded_by(ctx.index)
        if by is None:
            return FilterResult(text)
        lines = text.count("\n") + 1
        pointer = (
            f"[stale view of {ctx.log[ctx.index].action.shows}, {lines} lines: changed by #{ctx.log[by].seq}]"
        )
        if len(pointer) >= len(text):
            return FilterResult(text)
        return FilterResult(pointer, (Drop("superseded read", 1, lines, 1),), exempt=True)
