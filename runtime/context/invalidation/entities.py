"""What an observation can be a copy of, and how one version of it is told from another."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

ABSENT = "absent"
"""Identity of what does not exist."""
UNVERSIONED = "no version"
"""Identity of what has no version to tell: only its age counts."""


class EntityKind(StrEnum):
    """Kinds of source, by what tells their versions apart."""

    FILE = "file"
    """BLAKE3 of the bytes; stat says when to hash anew."""
    DIR = "dir"
    """Hash of the names in it and what each is."""
    PROC = "proc"
    """Start time and whether it runs."""
    DIAG = "diag"
    """What a build, test or linter said of a target. Its inputs decide; a later run replaces it."""
    DB = "db"
    ENDPOINT = "endpoint"
    SANDBOX = "sandbox"


@dataclass(frozen=True, slots=True)
class Entity:
    """One source. `name`: absolute path, process id, or whatever the host calls it."""

    kind: EntityKind
    name: str

    @property
    def uri(self) -> str:
        return f"{self.kind}://{self.name}"


@dataclass(frozen=True, slots=True)
class Version:
    """A source as it was at `read_at_ns` (nanoseconds since 1970).

    `identity` decides whether two versions are the same. `stamp`: what a cheap look showed (of files and directories:
    device, inode, mtime_ns, ctime_ns, size); while it stays and `settled`, nobody need look closer.
    """

    identity: str
    read_at_ns: int
    stamp: tuple[int, ...] = ()
    settled: bool = False


Probe = Callable[[Entity], str | None]
"""Asks a source of the host's own for its version. None: it has none to tell; time decides then."""


def file_entity(path: str | os.PathLike[str]) -> Entity:
    """The file at `path`, by that name: links are followed when it is looked at, not now."""
    return Entity(EntityKind.FILE, os.path.abspath(path))


def dir_entity(path: str | os.PathLike[str]) -> Entity:
    """The entries of the directory at `path`."""
    return Entity(EntityKind.DIR, os.path.abspath(path))


def proc_entity(pid: int) -> Entity:
    """The process with that id. Raises ValueError for an id that none can have."""
    if pid < 1:
        raise ValueError(f"pid is {pid}; give a process id, at least 1")
    return Entity(EntityKind.PROC, str(pid))


def diag_entity(target: str) -> Entity:
    """What is said of a target, such as `pytest tests/test_auth.py`."""
    return Entity(EntityKind.DIAG, target)
