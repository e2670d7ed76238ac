"""Progress of loading: a bar on a terminal, a few plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from deeproot.runtime.options import format_bytes

OnProgress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

_PLAIN_STEPS = 4


@contextmanager
def loading_progress(what: str, stream: TextIO | None = None) -> Iterator[OnProgress]:
    """Show on `stream` (standard error) how far loading `what` has come, as the yielded function is told."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _PlainLines(what, stream)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(f"Loading {what}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _PlainLines:
    """Writes a line at the start and at each quarter."""

    def __init__(self, what: str, stream: TextIO) -> None:
        self._what = what
        self._stream = stream
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        step = _PLAIN_STEPS if done >= total else done * _PLAIN_STEPS // total
        if step > self._shown:
            self._shown = step
            percent = 100 * step // _PLAIN_STEPS
            print(f"Loading {self._what}: {percent}% of {format_bytes(total)}", file=self._stream, flush=True)
