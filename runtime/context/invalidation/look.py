"""Looks at files, directories and processes: cheaply while nothing moved, closely when it did."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from deeproot.runtime.context.invalidation.entities import ABSENT, Entity, EntityKind, Version

RACY_NS = 20_000_000
"""A file that changed this shortly before it was read may change again within one tick of the file system's clock."""
_Identify = Callable[[str], tuple[str, tuple[int, ...], tuple[int, ...]]]
"""Path -> identity, and the stamps before and after it was read."""
_CHUNK = 1 << 20
_TRIES = 3
_STATES = {"Z": "ended", "X": "ended", "x": "ended", "T": "stopped", "t": "stopped"}
"""Of /proc; all others count as running, since a process goes from one to the other all the time."""


def stamp_of(found: os.stat_result) -> tuple[int, ...]:
    """Device, inode, mtime_ns, ctime_ns, size."""
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


def look(entity: Entity, known: Version | None = None) -> Version:
    """The version of a file, directory or process now; `known` itself if a cheap look shows that nothing moved.

    Raises ValueError for kinds that only the host can look at.
    """
    match entity.kind:
        case EntityKind.FILE:
            return _look_at_path(entity.name, known, _file_identity)
        case EntityKind.DIR:
            return _look_at_path(entity.name, known, _dir_identity)
        case EntityKind.PROC:
            return Version(_proc_identity(entity.name), time.time_ns())
        case _:
            raise ValueError(f"{entity.uri}: a {entity.kind} is looked at by the host's probe; give one")


def read_file(path: str | os.PathLike[str]) -> tuple[bytes, Version]:
    """All bytes of a file, and the version that they are.

    If it changes while it is read, it is read again, and after three tries the version is left unsettled: the next
    check hashes it anew. Raises OSError if it cannot be read, and if it is no regular file.
    """
    for _ in range(_TRIES):
        now = time.time_ns()
        with open(_open_regular(path), "rb") as file:
            before = stamp_of(os.fstat(file.fileno()))
            data = file.read()
            steady = before == stamp_of(os.fstat(file.fileno()))
        if steady:
            break
    return data, Version(blake3(data).hexdigest(), now, before, steady and _is_old(before, now))


def _look_at_path(path: str, known: Version | None, identify: _Identify) -> Version:
    now = time.time_ns()
    try:
        stamp = stamp_of(os.stat(path))
    except OSError:
        stamp = ()
    if known is not None and known.settled and known.stamp == stamp:
        return known
    for _ in range(_TRIES):
        try:
            identity, before, after = identify(path)
        except FileNotFoundError:
            return Version(ABSENT, now, (), True)
        except OSError as error:
            return Version(f"unreadable: {error.strerror}", now, (), False)
        if before == after:
            break
        now = time.time_ns()
    return Version(identity, now, before, before == after and _is_old(before, now))


def _file_identity(path: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Hash, and the stamps before and after reading."""
    digest = blake3()
    with open(_open_regular(path), "rb", buffering=0) as file:
        before = stamp_of(os.fstat(file.fileno()))
        buffer = bytearray(min(_CHUNK, before[4] + 1))
        while size := file.readinto(buffer):
            digest.update(memoryview(buffer)[:size])
        after = stamp_of(os.fstat(file.fileno()))
    return digest.hexdigest(), before, after


def _dir_identity(path: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    before = stamp_of(os.stat(path))
    lines = []
    with os.scandir(path) as entries:
        for entry in entries:
            kind = "link" if entry.is_symlink() else "dir" if entry.is_dir() else "file"
            lines.append(os.fsencode(entry.name) + b"\0" + kind.encode())
    digest = blake3(b"\0\0".join(sorted(lines))).hexdigest()
    return digest, before, stamp_of(os.stat(path))


def _proc_identity(pid: str) -> str:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "ended"
    fields = line.rpartition(")")[2].split()  # the name before may hold anything
    state = _STATES.get(fields[0], "running")
    return state if state == "ended" else f"{state} since {fields[19]}"


def _open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor of a regular file; a named pipe does not make it wait. Raises OSError for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file", os.fspath(path))
    return descriptor


def _is_old(stamp: tuple[int, ...], now: int) -> bool:
    """Whether the last change is long enough ago that another one would show in the stamp."""
    return now - max(stamp[2], stamp[3]) > RACY_NS
