"""File events from the operating system, for `Invalidator.notify`. Takes `pip install 'deeproot[context]'`."""

import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from watchfiles import watch

_STEP_MS = 20
_DEBOUNCE_MS = 50


class Watcher:
    """Watches folders with all that is in them, in a thread, and tells each batch of changed paths.

    Events are a hint: they can be late or lost, which is why `Invalidator.check` looks for itself. `with` starts and
    ends it. Raises FileNotFoundError for a folder that is not there.
    """

    def __init__(
        self, folders: Iterable[str | os.PathLike[str]], notify: Callable[[Iterable[str]], None]
    ) -> None:
        self._folders = [os.fspath(folder) for folder in folders]
        for folder in self._folders:
            if not os.path.isdir(folder):
                raise FileNotFoundError(f"{folder} is no folder; give one that exists to watch")
        self._notify = notify
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="file-watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        batches = watch(
            *self._folders,
            watch_filter=None,
            stop_event=self._stop,
            step=_STEP_MS,
            debounce=_DEBOUNCE_MS,
            rust_timeout=200,
            ignore_permission_denied=True,
        )
        for changes in batches:
            self._notify([path for _, path in changes])
