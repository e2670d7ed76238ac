"""The append-only log of a run, and the archive of every payload, in SQLite or in memory."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deeproot.runtime.context.events import Event, EventKind, encode_text, payload_hash, payload_text

_APPLICATION_ID = 0x64656570
_VERSION = 1
_SCHEMA = (
    "CREATE TABLE payloads (hash TEXT PRIMARY KEY, bytes BLOB NOT NULL)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, time_ns INTEGER NOT NULL, kind TEXT NOT NULL,"
    " payload_hash TEXT NOT NULL REFERENCES payloads(hash), payload_size INTEGER NOT NULL,"
    " call_id TEXT, exit_code INTEGER, data TEXT NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_VERSION}",
)
_COLUMNS = "seq, time_ns, kind, payload_hash, payload_size, call_id, exit_code, data"


class EventLogError(ValueError):
    """The file is no event log, or what is asked of the log is not in it."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event before it has its number. `time_ns` None: the log's clock says when."""

    kind: EventKind
    payload: bytes | str = b""
    data: Mapping[str, Any] | None = None
    call_id: str | None = None
    exit_code: int | None = None
    time_ns: int | None = None


class EventLog:
    """Append, read back, replay. One writer at a time; an append that returned survives a power cut.

    Use from the thread that opened it. `open` and `memory` make one; `close` (or `with`) ends it.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], int]) -> None:
        self._db = connection
        self._clock = clock
        self._head = self._last_seq()

    @classmethod
    def open(cls, path: str | Path, *, clock: Callable[[], int] = time.time_ns) -> Self:
        """Open or create the log at `path`. Raises `EventLogError` if the file is something else."""
        try:
            connection = sqlite3.connect(path, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise EventLogError(f"{path}: cannot be opened ({error})") from None
        try:
            _prepare(connection, str(path))
            return cls(connection, clock)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise EventLogError(f"{path}: not an event log ({error}); give another path") from None
        except EventLogError:
            connection.close()
            raise

    @classmethod
    def memory(cls, *, clock: Callable[[], int] = time.time_ns) -> Self:
        """A log that ends with the process."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        _prepare(connection, "memory")
        return cls(connection, clock)

    def close(self) -> None:
        """Close the file. The log cannot be used afterwards."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._head

    def append(
        self,
        kind: EventKind,
        payload: bytes | str = b"",
        *,
        data: Mapping[str, Any] | None = None,
        call_id: str | None = None,
        exit_code: int | None = None,
        time_ns: int | None = None,
    ) -> Event:
        """Write one event and its payload; when this returns, both are on disk.

        `data` must be JSON (its key order is kept). Raises `EventLogError` if it is not.
        """
        return self.extend([NewEvent(kind, payload, data, call_id, exit_code, time_ns)])[0]

    def extend(self, new: Sequence[NewEvent]) -> list[Event]:
        """Write several events in one transaction: all of them or, after a power cut, none."""
        rows = [self._row(event) for event in new]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            head = self._last_seq()
            events = [_with_seq(event, head + i) for i, (event, _) in enumerate(rows, 1)]
            for event, (_, payload) in zip(events, rows, strict=True):
                self._insert(event, payload)
            self._db.execute("COMMIT")
        except BaseException:  # raised again: all events or none
            self._db.execute("ROLLBACK")
            raise
        self._head = head + len(events)
        return events

    def read(self, start: int = 1, stop: int | None = None) -> Iterator[Event]:
        """Events with `start <= seq < stop` in order (`stop` None: to the end)."""
        last = self._last_seq() if stop is None else stop - 1
        cursor = self._db.execute(
            f"SELECT {_COLUMNS} FROM events WHERE seq BETWEEN ? AND ? ORDER BY seq", (start, last)
        )
        for row in cursor:
            call_id = row[5].decode("utf-8", "surrogatepass") if isinstance(row[5], bytes) else row[5]
            yield Event(
                row[0], row[1], EventKind(row[2]), row[3], row[4], call_id, row[6], json.loads(row[7])
            )

    def event(self, seq: int) -> Event:
        """The event with that number. Raises `EventLogError` if there is none."""
        for event in self.read(seq, seq + 1):
            return event
        raise EventLogError(f"the log has no event {seq}; its last is {len(self)}")

    def payload(self, of: Event | str) -> bytes:
        """The bytes that an event carries, whatever a context dropped or shortened.

        `of`: an event, or a payload's BLAKE3 (at least the first 8 hex digits). Raises `EventLogError` if the
        archive has no such payload or several start with those digits.
        """
        digest = of.payload_hash if isinstance(of, Event) else of
        if len(digest) < 8 or not set(digest) <= set("0123456789abcdef"):
            raise EventLogError(f"{digest!r} is no BLAKE3: give at least its first 8 hex digits")
        rows = self._db.execute(
            "SELECT bytes FROM payloads WHERE hash >= ? AND hash < ? LIMIT 2", (digest, digest + "g")
        ).fetchall()
        if len(rows) != 1:
            found = "no payload" if not rows else "several payloads"
            raise EventLogError(f"{found} in the archive with a BLAKE3 that starts with {digest}")
        return bytes(rows[0][0])

    def text(self, event: Event) -> str:
        """The payload as text; bytes that are no UTF-8 become U+FFFD."""
        return payload_text(self.payload(event))

    def _row(self, new: NewEvent) -> tuple[Event, bytes]:
        payload = encode_text(new.payload) if isinstance(new.payload, str) else new.payload
        data = checked_data(new)
        now = self._clock() if new.time_ns is None else new.time_ns
        digest = payload_hash(payload)
        return Event(0, now, new.kind, digest, len(payload), new.call_id, new.exit_code, data), payload

    def _insert(self, event: Event, payload: bytes) -> None:
        self._db.execute("INSERT OR IGNORE INTO payloads VALUES (?, ?)", (event.payload_hash, payload))
        self._db.execute(
            f"INSERT INTO events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                event.seq,
                event.time_ns,
                event.kind.value,
                event.payload_hash,
                event.payload_size,
                _column_of(event.call_id),
                event.exit_code,
                json.dumps(event.data, allow_nan=False),
            ),
        )

    def _last_seq(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])


def checked_data(new: NewEvent) -> dict[str, Any]:
    """A copy of the event's data. Raises `EventLogError` if it is not JSON."""
    data = dict(new.data or {})
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EventLogError(f"data of a {new.kind} event is not JSON: {error}") from None
    return data


def _with_seq(event: Event, seq: int) -> Event:
    return Event(
        seq,
        event.time_ns,
        event.kind,
        event.payload_hash,
        event.payload_size,
        event.call_id,
        event.exit_code,
        json.loads(json.dumps(event.data)),
    )


def _prepare(db: sqlite3.Connection, path: str) -> None:
    """Settings for durability, and the schema if the file is new. A foreign database is left untouched."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != _APPLICATION_ID and not (application == 0 and tables == 0):
        raise EventLogError(f"{path}: a database of another program; give another path")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    if tables == 0:
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            db.execute(statement)
        db.execute("COMMIT")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != _VERSION:
        raise EventLogError(
            f"{path}: log format {version}, but this program reads {_VERSION}; use the newer program"
        )


def _column_of(text: str | None) -> str | bytes | None:
    """Text as SQLite takes it; bytes where lone surrogates, which imported ids may hold, make it no text."""
    if text is None or not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-8", "surrogatepass")
