"""Working sets that the server keeps for its clients: a log each, under a bound a tenant, in memory or in files.

Nothing is ever forgotten to make room: a log is its client's, who deletes it. Not for several threads at once.
"""

import json
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from deeproot.runtime.context.event_log import EventLog, EventLogError, NewEvent
from deeproot.runtime.context.events import encode_text
from deeproot.runtime.context.working_set import WorkingSet

logger = logging.getLogger(__name__)

_EVENT_BYTES = 256
"""What an event takes beside its payload and data."""
_NOBODY = "anyone"
"""Folder of sets made without a key."""


class UnknownWorkingSet(Exception):
    """This owner has no such working set."""


class NoRoom(Exception):
    """The owner has as much as one may have. The text says what, and what to do."""


class Conflict(Exception):
    """The log is not where the client believes, or is about to get a reply. The text says which."""


@dataclass(slots=True)
class KeptSet:
    """One working set."""

    set_id: str
    owner: str
    settings: dict[str, Any]
    """What it was created with, as JSON."""
    created: int
    log: EventLog
    num_bytes: int = 0
    """Of its events."""
    assembler: WorkingSet | None = None
    """Made when it is first needed: a model has to be loaded."""
    replying: bool = False
    """Whether a reply is being written that will be appended."""
    folder: Path | None = field(default=None)
    """None: in memory."""


class WorkingSetStore:
    """See the module."""

    def __init__(self, folder: Path | None, max_sets: int, max_bytes: int) -> None:
        """`folder`: where the sets are kept, one folder each; None: in memory. `max_sets` and `max_bytes` (of events): of one
        owner. Raises OSError if the folder cannot be made."""
        self._folder = folder
        self._max_sets = max_sets
        self._max_bytes = max_bytes
        self._sets: dict[tuple[str, str], KeptSet] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*/*/settings.json")):
                self._load(path.parent)

    def create(self, owner: str, settings: dict[str, Any], events: Sequence[NewEvent]) -> KeptSet:
        """A new set with its first events. Raises NoRoom."""
        mine = self.of(owner)
        if len(mine) >= self._max_sets:
            raise NoRoom(
                f"There are {len(mine)} working sets and a client may have {self._max_sets}: delete those that are done."
            )
        self._check_room(owner, events)
        made = self._new(owner, settings)
        self._sets[owner, made.set_id] = made
        try:
            self._append(made, events)
        except BaseException:  # the disk is full, say: nobody has been told its name
            self.delete(owner, made.set_id)
            raise
        return made

    def get(self, owner: str, set_id: str) -> KeptSet:
        """Raises UnknownWorkingSet."""
        found = self._sets.get((owner, set_id))
        if found is None:
            raise UnknownWorkingSet(set_id)
        return found

    def of(self, owner: str) -> list[KeptSet]:
        """All sets of an owner, the oldest first."""
        return [kept for (whose, _), kept in self._sets.items() if whose == owner]

    def append(self, kept: KeptSet, events: Sequence[NewEvent], after: int | None) -> int:
        """Append all or none, and return the number of the newest event. Raises Conflict and NoRoom.

        `after`: the number that the newest event must have now.
        """
        if kept.replying and events:
            raise Conflict("A reply is being written to this working set: wait until it has ended.")
        if after is not None and after != len(kept.log):
            raise Conflict(f"after is {after}, but the newest event of this working set is {len(kept.log)}.")
        self._check_room(kept.owner, events)
        self._append(kept, events)
        return len(kept.log)

    def reply(self, kept: KeptSet, event: NewEvent) -> int:
        """Append what the model said, whatever room there is: it has been paid for. The log's newest number."""
        self._append(kept, [event])
        return len(kept.log)

    def delete(self, owner: str, set_id: str) -> None:
        """Forget a set and its files. Raises UnknownWorkingSet."""
        kept = self.get(owner, set_id)
        del self._sets[owner, set_id]
        kept.log.close()
        if kept.folder is not None:
            shutil.rmtree(kept.folder)

    def close(self) -> None:
        for kept in self._sets.values():
            kept.log.close()
        self._sets.clear()

    def _new(self, owner: str, settings: dict[str, Any]) -> KeptSet:
        set_id, created = f"ws_{uuid4().hex}", int(time.time())
        if self._folder is None:
            return KeptSet(set_id, owner, settings, created, EventLog.memory())
        folder = self._folder / (owner or _NOBODY) / set_id
        folder.mkdir(parents=True)
        log = EventLog.open(folder / "log.db")
        # Last, so that a folder with settings always has a log.
        about = {"owner": owner, "created": created, "settings": settings}
        (folder / "settings.json").write_text(json.dumps(about))
        return KeptSet(set_id, owner, settings, created, log, folder=folder)

    def _load(self, folder: Path) -> None:
        """A set that an earlier server kept. One that cannot be read is left where it is, and said so."""
        try:
            about = json.loads((folder / "settings.json").read_text())
            log = EventLog.open(folder / "log.db")
            kept = KeptSet(
                folder.name, about["owner"], about["settings"], about["created"], log, folder=folder
            )
            kept.num_bytes = sum(_size(event.payload_size, event.data) for event in log.read())
        except (OSError, ValueError, LookupError, EventLogError) as error:
            logger.error("the working set in %s cannot be read: %s", folder, error)
            return
        self._sets[kept.owner, kept.set_id] = kept

    def _check_room(self, owner: str, events: Sequence[NewEvent]) -> None:
        used = sum(kept.num_bytes for kept in self.of(owner))
        more = sum(_new_size(event) for event in events)
        if events and used + more > self._max_bytes:
            raise NoRoom(
                f"These events take {more} bytes, {used} are in use and a client may have {self._max_bytes}: delete"
                " working sets that are done, or have the server started with a larger --working-set-bytes."
            )

    @staticmethod
    def _append(kept: KeptSet, events: Sequence[NewEvent]) -> None:
        kept.log.extend(events)
        kept.num_bytes += sum(_new_size(event) for event in events)


def _new_size(event: NewEvent) -> int:
    payload = encode_text(event.payload) if isinstance(event.payload, str) else event.payload
    return _size(len(payload), dict(event.data or {}))


def _size(payload: int, data: Any) -> int:
    return payload + len(json.dumps(data)) + _EVENT_BYTES
