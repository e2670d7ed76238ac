"""What `read`, `write` and `patch` do. Nothing here knows of logs or models."""

import difflib
import time
from dataclasses import dataclass

from blake3 import blake3

from deeproot.runtime.agent.arguments import BadCallError, Patch, Read, Write
from deeproot.runtime.agent.jail import Jail, JailError, ReadFile
from deeproot.runtime.agent.outcome import Outcome
from deeproot.runtime.context.invalidation.entities import ABSENT, Version, dir_entity, file_entity
from deeproot.runtime.context.invalidation.look import look

MOST_BYTES = 8 << 20
"""Larger files are not read whole."""
_SHOWN = 256 << 10


@dataclass(frozen=True, slots=True)
class Change:
    """What `write` or `patch` is about to do. `before` and `after`: BLAKE3 of the file, or `ABSENT`."""

    path: str
    data: bytes
    before: str
    after: str
    said: str
    """The tool's answer once it is done."""
    shows: bool
    """Whether the model has seen all of what the file then is."""


def read(jail: Jail, asked: Read) -> Outcome:
    """The file's lines, or a folder's names. Raises JailError and BadCallError."""
    folder = dir_entity(jail.absolute(jail.real(asked.path)))
    version = look(folder)
    names = jail.names(asked.path)
    if names is not None:
        return Outcome("\n".join(names) or "[an empty folder]", shows={folder: version})
    file = _read(jail, asked.path)
    shows = {file_entity(jail.absolute(file.path)): _version(file)}
    if b"\0" in file.data[:8192]:
        kind = f"[binary file, {file.size} bytes, BLAKE3 {blake3(file.data).hexdigest()}]"
        return Outcome(kind, shows=shows)
    if asked.first == 1 and asked.lines is None and len(file.data) <= _SHOWN:
        return Outcome(file.data, shows=shows)
    lines = file.data.splitlines(keepends=True)
    if asked.first > max(1, len(lines)):
        raise BadCallError(f"first is {asked.first}, and {asked.path} has {len(lines)} lines")
    last = len(lines) if asked.lines is None else min(len(lines), asked.first - 1 + asked.lines)
    text, upto = b"", asked.first - 1
    while upto < last and len(text) + len(lines[upto]) <= _SHOWN:
        text += lines[upto]
        upto += 1
    head = f"[lines {asked.first} to {upto} of {len(lines)}]\n".encode()
    return Outcome(head + text, shows=shows)


def prepare_write(jail: Jail, asked: Write) -> Change:
    """Raises JailError."""
    before = _identity(jail, asked.path)
    data = asked.content.encode("utf-8", "surrogatepass")
    lines = asked.content.count("\n") + (not asked.content.endswith("\n") and bool(asked.content))
    verb = "created" if before == ABSENT else "replaced"
    said = f"{verb} {asked.path}: {lines} lines, {len(data)} bytes"
    return Change(asked.path, data, before, blake3(data).hexdigest(), said, shows=True)


def prepare_patch(jail: Jail, asked: Patch) -> Change:
    """Raises JailError and BadCallError."""
    file = _read(jail, asked.path)
    old, new = (text.encode("utf-8", "surrogatepass") for text in (asked.old, asked.new))
    count = file.data.count(old)
    if count != 1:
        raise BadCallError(_not_once(asked, file.data, count))
    data = file.data.replace(old, new)
    before, after = (text.decode("utf-8", "replace").splitlines() for text in (file.data, data))
    diff = "\n".join(difflib.unified_diff(before, after, asked.path, asked.path, n=3, lineterm=""))
    said = f"patched {asked.path}\n{diff}"
    return Change(
        asked.path, data, blake3(file.data).hexdigest(), blake3(data).hexdigest(), said, shows=False
    )


def commit(jail: Jail, change: Change) -> Outcome:
    """Write it. Raises JailError."""
    jail.write(change.path, change.data)
    return done(jail, change.path, change.after, change.said, shows=change.shows)


def done(jail: Jail, path: str, after: str, said: str, *, shows: bool) -> Outcome:
    """What is to be said of a change that has been made."""
    real = jail.absolute(jail.real(path))
    version = {file_entity(real): Version(after, time.time_ns())}
    return Outcome(said, shows=version if shows else {}, wrote={real: after})


def identity(jail: Jail, path: str) -> str:
    """BLAKE3 of a file now, or `ABSENT`. Raises JailError if it is no regular file of the workspace."""
    return _identity(jail, path)


def _identity(jail: Jail, path: str) -> str:
    if not jail.exists(path):
        return ABSENT
    return blake3(_read(jail, path).data).hexdigest()


def _read(jail: Jail, path: str) -> ReadFile:
    file = jail.read(path, MOST_BYTES)
    if file.size > MOST_BYTES:
        raise JailError(
            f"{path} has {file.size} bytes, and {MOST_BYTES} can be read: search it, or run a command on it"
        )
    return file


def _version(file: ReadFile) -> Version:
    """Unsettled, so that the next check looks at the bytes once more."""
    return Version(blake3(file.data).hexdigest(), time.time_ns(), file.stamp)


def _not_once(asked: Patch, data: bytes, count: int) -> str:
    if count:
        return f"old stands in {asked.path} {count} times: give more lines around the passage, so that it is only one"
    text = data.decode("utf-8", "replace")
    loose = " ".join(asked.old.split()) in " ".join(text.split())
    hint = "; it does with other white space" if loose else ""
    return f"old does not stand in {asked.path}{hint}: read the file, and copy the passage exactly"
