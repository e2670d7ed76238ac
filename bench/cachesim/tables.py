"""Tables for people."""

from collections.abc import Sequence


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [_line(heads, widths), "|" + "|".join(_rule(i, width) for i, width in enumerate(widths)) + "|"]
    return "\n".join(lines + [_line(row, widths) for row in rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"


def _rule(column: int, width: int) -> str:
    return "-" * (width + 2) if column == 0 else "-" * (width + 1) + ":"
