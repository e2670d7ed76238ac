"""Tables for people, on a terminal and in Markdown."""

from collections.abc import Sequence

import numpy as np

from deeproot.bench.report.result import How, Result, Table

MARKS = {How.MEASURED: "m", How.COUNTED: "c", How.FLOOR: "f"}


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [_line(heads, widths), "|" + "|".join(_rule(i, width) for i, width in enumerate(widths)) + "|"]
    return "\n".join(lines + [_line(row, widths) for row in rows])


def percentile_cells(values: Sequence[float], shares: Sequence[float], digits: int = 1) -> list[str]:
    """A table's cells with these percentiles of the values; "-" in each if there are none."""
    if not len(values):
        return ["-"] * len(shares)
    return [f"{value:,.{digits}f}" for value in np.percentile(values, shares)]


def as_text(result: Result) -> str:
    """Title, tables and notes. Behind a column's head stands what its numbers are: [m], [c] or [f]."""
    parts = [result.title]
    for table in result.tables:
        parts += [f"{table.title}:", markdown(table)]
        if table.note:
            parts.append(table.note)
    used = {column.how for table in result.tables for column in table.columns}
    keys = [f"[{mark}] {how.value}" for how, mark in MARKS.items() if how in used]
    if keys:
        parts.append("; ".join(keys))
    return "\n\n".join([*parts, *result.notes])


def markdown(table: Table) -> str:
    """One table as Markdown."""
    heads = [c.title if c.how is None else f"{c.title} [{MARKS[c.how]}]" for c in table.columns]
    return text_table(heads, table.rows)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"


def _rule(column: int, width: int) -> str:
    return "-" * (width + 2) if column == 0 else "-" * (width + 1) + ":"
