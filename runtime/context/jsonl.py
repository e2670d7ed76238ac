"""The log as JSON lines, one event a line, and back: the copy is equal in every field and byte."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind, payload_hash
from deeproot.runtime.context.openai_messages import LogImportError

_BATCH = 500


def export_lines(log: EventLog, start: int = 1) -> Iterator[str]:
    """One JSON object a line, without the line end, from event `start` on."""
    for event in log.read(start):
        payload = log.payload(event)
        line: dict[str, Any] = {
            "seq": event.seq,
            "time_ns": event.time_ns,
            "kind": event.kind.value,
            "call_id": event.call_id,
            "exit_code": event.exit_code,
            "blake3": event.payload_hash,
            "data": dict(event.data),
        }
        try:
            line["text"] = payload.decode("utf-8")
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(payload).decode("ascii")
        yield json.dumps(line, ensure_ascii=True)


def import_lines(log: EventLog, lines: Iterable[str]) -> int:
    """Append every event of `lines` to `log` and return how many there were.

    Raises `LogImportError` naming the line and field that is wrong; batches before it are kept.
    """
    batch: list[NewEvent] = []
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        batch.append(_parse(line, number))
        count += 1
        if len(batch) == _BATCH:
            log.extend(batch)
            batch = []
    if batch:
        log.extend(batch)
    return count


def _parse(line: str, number: int) -> NewEvent:
    where = f"line {number}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LogImportError(f"{where}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise LogImportError(f"{where}: not an object; give one event a line")
    try:
        kind = EventKind(str(record.get("kind")))
    except ValueError:
        known = ", ".join(EventKind)
        raise LogImportError(f"{where}: kind is {record.get('kind')!r}; give one of {known}") from None
    payload = payload_of(record, where)
    time_ns = _typed(record, "time_ns", int, where)
    call_id = _typed(record, "call_id", str, where)
    exit_code = _typed(record, "exit_code", int, where)
    data = _typed(record, "data", dict, where) or {}
    return NewEvent(kind, payload, data, call_id, exit_code, time_ns)


def payload_of(record: Mapping[str, Any], where: str) -> bytes:
    """The bytes that a record of an export carries. Raises `LogImportError` if it has none, or others than it says."""
    payload: bytes
    if isinstance(record.get("text"), str):
        payload = record["text"].encode("utf-8", "surrogatepass")
    elif isinstance(record.get("base64"), str):
        try:
            payload = base64.b64decode(record["base64"], validate=True)
        except ValueError as error:
            raise LogImportError(f"{where}: base64 is broken ({error})") from None
    else:
        raise LogImportError(f"{where}: neither text nor base64 is given")
    if "blake3" in record and record["blake3"] != payload_hash(payload):
        raise LogImportError(f"{where}: blake3 does not fit the payload; the line was changed")
    return payload


def _typed(record: dict[str, Any], field: str, kind: type, where: str) -> Any:
    value = record.get(field)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise LogImportError(f"{where}: {field} is {type(value).__name__}; give {kind.__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise LogImportError(f"{where}: {field} is {value}; give a number of 64 bits")
    return value
