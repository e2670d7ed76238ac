"""The observations of a run as the filters across observations see them: what was seen, and of which file."""

import hashlib
import posixpath
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """A tool call, as far as files are concerned. Paths are absolute where the working directory is known."""

    command: str
    shows: str | None = None
    """The file that the observation is a view of, as it is after the action."""
    changes: tuple[str, ...] = ()
    """Files that the action wrote, moved or deleted."""


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

    Filters ask it what came before and after; it holds the texts, the archive holds the bytes.
    """

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._items: list[Observation] = []
        self._same: dict[tuple[bytes, str | None], list[int]] = {}
        self._digests: list[bytes] = []
        self._changes: dict[str, list[int]] = {}
        self._views: dict[str, list[int]] = {}
        for observation in observations:
            self.append(observation)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Observation:
        return self._items[index]

    def append(self, observation: Observation) -> int:
        """Add the newest observation; gives its index. Raises ValueError when its seq does not grow."""
        index = len(self._items)
        if self._items and observation.seq <= self._items[-1].seq:
            raise ValueError(
                f"seq is {observation.seq} after {self._items[-1].seq}; append in the log's order"
            )
        self._items.append(observation)
        digest = hashlib.blake2b(observation.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._digests.append(digest)
        self._same.setdefault((digest, observation.action.shows), []).append(index)
        for path in observation.action.changes:
            self._changes.setdefault(posixpath.normpath(path), []).append(index)
        if observation.action.shows is not None:
            self._views.setdefault(posixpath.normpath(observation.action.shows), []).append(index)
        return index

    def views(self, index: int) -> list[int]:
        """Indices of the views of the file that this observation shows, up to itself."""
        shows = self._items[index].action.shows
        if shows is None:
            return []
        views = self._views[posixpath.normpath(shows)]
        return views[: bisect_right(views, index)]

    def same(self, index: int) -> list[int]:
        """Indices of all observations with that very text and of that very file, in order, itself included."""
        return self._same[self._digests[index], self._items[index].action.shows]

    def last_change(self, index: int) -> int:
        """Index of the last action up to this one that changed the file that this one shows; 0 if there is none."""
        shows = self._items[index].action.shows
        changes = [] if shows is None else self._changes.get(posixpath.normpath(shows), [])
        before = bisect_right(changes, index)
        return changes[before - 1] if before else 0

    def superseded_by(self, index: int) -> int | None:
        """Index of the first later observation whose action changed the file that this one shows; None: it stands."""
        shows = self._items[index].action.shows
        changes = [] if shows is None else self._changes.get(posixpath.normpath(shows), [])
        after = bisect_right(changes, index)
        return changes[after] if after < len(changes) else None
