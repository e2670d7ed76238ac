"""How far a benchmark has come: a bar on a terminal, a few plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[[str], None]
"""Called after each piece of work, with the name of the next or of this one."""


@contextmanager
def progress(what: str, total: int, stream: TextIO | None = None) -> Iterator[Advance]:
    """Show on `stream` (standard error) how many of `total` pieces are done."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _PlainLines(what, total, stream)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(name: str) -> None:
            bar.update(task, advance=1, description=f"{what}: {name}" if name else what)

        yield advance


class _PlainLines:
    """A line at each quarter."""

    def __init__(self, what: str, total: int, stream: TextIO) -> None:
        self._what, self._total, self._stream = what, max(1, total), stream
        self._done = 0

    def __call__(self, name: str) -> None:
        before, self._done = self._done, self._done + 1
        if self._done * 4 // self._total > before * 4 // self._total:
            print(f"{self._what}: {self._done} of {self._total}", file=self._stream, flush=True)
