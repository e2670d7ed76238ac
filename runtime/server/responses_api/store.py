"""Responses that requests may refer to by id, in SQLite, up to a number of bytes.

Each row holds what its request added to the conversation, so that a long conversation is not stored again with each
turn. Forgotten first is what was not used for longest; using a response uses all that it follows, and of rows that
were used together the last of the conversation goes first, so that what is kept can always be followed back.
"""

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

Item = dict[str, Any]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    previous TEXT,
    depth INTEGER NOT NULL,
    used INTEGER NOT NULL,
    input BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_use ON responses (used, depth DESC);
"""
_SIZE = "length(input) + length(body)"


class UnknownResponse(Exception):
    """No such response is stored for this owner."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as the client got it, and the input items of its request."""

    body: dict[str, Any]
    input: list[Item]


class ResponseStore:
    """Safe for use by several threads, and by several servers on one file. Errors of SQLite pass through."""

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        """`path`: None keeps everything in memory. `max_bytes`: of stored JSON."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=10.0)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(_SCHEMA)

    def put(self, owner: str, body: dict[str, Any], items: Sequence[Item]) -> None:
        """Store a response under its id; the oldest are forgotten for it."""
        given, said = msgspec.json.encode(items), msgspec.json.encode(body)
        previous = body.get("previous_response_id")
        with self._lock, self._db:
            now = self._now()
            depth = 1 + self._use(owner, previous, now)
            values = (body["id"], owner, previous, depth, now, given, said)
            self._db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            self._forget()

    def get(self, owner: str, response_id: str) -> StoredResponse:
        """Raises UnknownResponse."""
        with self._lock:
            row = self._row(owner, response_id)
        return StoredResponse(msgspec.json.decode(row[2]), msgspec.json.decode(row[1]))

    def conversation(self, owner: str, response_id: str) -> list[Item]:
        """All items up to and with a response's output, in order. Raises UnknownResponse, also for one before it."""
        turns: list[list[Item]] = []
        with self._lock, self._db:
            self._use(owner, response_id, self._now())
            wanted: str | None = response_id
            while wanted is not None:
                wanted, given, said = self._row(owner, wanted)
                turns.append([*msgspec.json.decode(given), *msgspec.json.decode(said)["output"]])
        return [item for turn in reversed(turns) for item in turn]

    def delete(self, owner: str, response_id: str) -> None:
        """Raises UnknownResponse."""
        with self._lock, self._db:
            self._row(owner, response_id)
            self._db.execute("DELETE FROM responses WHERE id = ?", (response_id,))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _row(self, owner: str, response_id: str) -> tuple[str | None, bytes, bytes]:
        query = "SELECT previous, input, body FROM responses WHERE id = ? AND owner = ?"
        row: tuple[str | None, bytes, bytes] | None = self._db.execute(query, (response_id, owner)).fetchone()
        if row is None:
            raise UnknownResponse(response_id)
        return row

    def _use(self, owner: str, response_id: str | None, now: int) -> int:
        """Stamp a response and all that it follows; returns its depth, 0 if it is not there."""
        depths = []
        while response_id is not None:
            row = self._db.execute(
                "UPDATE responses SET used = ? WHERE id = ? AND owner = ? RETURNING previous, depth",
                (now, response_id, owner),
            ).fetchone()
            if row is None:
                break
            response_id = row[0]
            depths.append(row[1])
        return depths[0] if depths else 0

    def _now(self) -> int:
        """A stamp later than all that are stored; clocks may jump."""
        latest: int = self._db.execute("SELECT coalesce(max(used), 0) FROM responses").fetchone()[0]
        return latest + 1

    def _forget(self) -> None:
        total: int = self._db.execute(f"SELECT coalesce(sum({_SIZE}), 0) FROM responses").fetchone()[0]
        while total > self._max_bytes:
            row = self._db.execute(
                f"SELECT id, {_SIZE} FROM responses ORDER BY used, depth DESC LIMIT 1"
            ).fetchone()
            if row is None:
                return
            self._db.execute("DELETE FROM responses WHERE id = ?", (row[0],))
            total -= row[1]
