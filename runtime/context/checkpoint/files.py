"""The disk as the gates see it: which files there are, and what their bytes hash to."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileState:
    """A file's BLAKE3 (64 hex digits) and its number of lines."""

    hash: str
    lines: int


class Files(Protocol):
    """Answers for paths as checkpoints spell them."""

    def state(self, path: str) -> FileState | None:
        """None if there is no such file, or it must not be read."""
        ...

    def name(self, uri: str) -> str | None:
        """The path by which a file that the log or a command calls `uri` goes in checkpoints; None if it is outside."""
        ...


class Workspace:
    """Regular files under `root`. Paths that lead out of it, by `..` or by links, count as missing."""

    def __init__(self, root: str | Path) -> None:
        """Raises NotADirectoryError if `root` is no folder."""
        self._root = Path(root).resolve()
        if not self._root.is_dir():
            raise NotADirectoryError(f"{root} is no folder; give the workspace in which the agent works")

    def name(self, uri: str) -> str | None:
        path = self._root / uri.removeprefix("file://")
        try:
            return path.resolve().relative_to(self._root).as_posix()
        except (ValueError, OSError, RuntimeError):
            return None

    def state(self, path: str) -> FileState | None:
        if os.path.isabs(path):
            return None
        try:
            real = (self._root / path).resolve()
            if not real.is_relative_to(self._root) or not stat.S_ISREG(real.stat().st_mode):
                return None
            return _hashed(real)
        except (OSError, ValueError, RuntimeError):
            return None


class LoggedFiles:
    """The newest version of each file that the log holds up to event `upto`, for runs whose disk is gone."""

    def __init__(self, log: EventLog, upto: int | None = None) -> None:
        self._log = log
        stop = None if upto is None else upto + 1
        self._newest = {
            str(event.data.get("uri")): event
            for event in log.read(1, stop)
            if event.kind is EventKind.FILE_VERSION
        }

    def name(self, uri: str) -> str | None:
        return uri if uri in self._newest else None

    def state(self, path: str) -> FileState | None:
        event = self._newest.get(path)
        if event is None:
            return None
        return FileState(event.payload_hash, _lines(self._log.payload(event)))


class Snapshot:
    """Asks other `Files` once for each path, so that what is written and what is checked are one reading."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, FileState | None] = {}

    def name(self, uri: str) -> str | None:
        return self._files.name(uri)

    def state(self, path: str) -> FileState | None:
        if path not in self._known:
            self._known[path] = self._files.state(path)
        return self._known[path]


def _hashed(path: Path) -> FileState:
    hasher = blake3()
    feeds, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            feeds += chunk.count(b"\n")
            last = chunk[-1:]
    return FileState(hasher.hexdigest(), feeds + (last != b"\n"))


def _lines(payload: bytes) -> int:
    return payload.count(b"\n") + (payload[-1:] not in (b"", b"\n"))


def changed(hashes: Mapping[str, str], files: Files) -> list[str]:
    """Paths whose file is gone or no longer has the hash (its first digits) that is given for it, sorted."""
    stale = []
    for path, digits in hashes.items():
        state = files.state(path)
        if state is None or not state.hash.startswith(digits):
            stale.append(path)
    return sorted(stale)
