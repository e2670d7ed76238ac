"""The observations of a run as the filters across observations see them: what was seen, and of which file."""

import hashlib
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    """What a tool call did to a file."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Action:
    """A tool call, as far as files are concerned."""

    kind: ActionKind
    command: str
    path: str | None = None
    """Absolute where the working directory is known."""
    shows: bool = False
    """The observation is a view of the file after the action (a read, or an edit that answers with a view)."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One tool result."""

    seq: int
    """Its number in the event log, by which pointers name it."""
    action: Action
    text: str
    time: float | None = None
    """Seconds, from any fixed origin."""


class ObservationLog:
    """Observations in order, indexed by content and by file.

    Filters ask it questions about what came before and after; it holds the texts, the archive holds the bytes.
    """

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._items: list[Observation] = []
        self._same: dict[bytes, list[int]] = {}
        self._digests: list[bytes] = []
        self._changes: dict[str, list[int]] = {}
        for observation in observations:
            self.append(observation)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Observation:
        return self._items[index]

    def append(self, observation: Observation) -> int:
        """Add the newest observation; gives its index."""
        index = len(self._items)
        self._items.append(observation)
        digest = hashlib.blake2b(observation.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._digests.append(digest)
        self._same.setdefault(digest, []).append(index)
        action = observation.action
        if action.path is not None and action.kind in (ActionKind.WRITE, ActionKind.DELETE):
            self._changes.setdefault(posixpath.normpath(action.path), []).append(index)
        return index

    def same_text(self, index: int) -> list[int]:
        """Indices of all observations with that very text, in order, itself included."""
        return self._same[self._digests[index]]

    def superseded_by(self, index: int) -> int | None:
        """The first later observation whose action changed the file that this one shows; None: it stands."""
        action = self._items[index].action
        if not action.shows or action.path is None:
            return None
        changes = self._changes.get(posixpath.normpath(action.path), [])
        return next((i for i in changes if i > index), None)
