"""What an extractor gives: one record a diagnostic, and the lines that say how it all ended."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Frame:
    """One place on the way to a failure."""

    file: str
    line: int
    column: int | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that a tool complained about. Strings are verbatim; what the tool did not say is None."""

    tool: str
    message: str
    severity: str = "error"
    """error, warning, or failed (a test)."""
    target: str | None = None
    """Failing test, object, goal or package that was being built or run."""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    """As the tool counts it."""
    code: str | None = None
    """E0308, -Werror=format, TS2322, a rule, or the exception's class."""
    expression: str | None = None
    """The source line that failed."""
    locals: tuple[tuple[str, str], ...] = ()
    frames: tuple[Frame, ...] = ()
    """Callers and macros, nearest first; frames of libraries are left out."""
    detail: tuple[str, ...] = ()
    """Further lines: notes, expected and received, captured output."""
    at: int = 0
    """Line of the observation (from 1) on which it starts."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """An extractor's reading of one output."""

    diagnostics: tuple[Diagnostic, ...] = ()
    summary: tuple[str, ...] = ()
    """Lines that tell the outcome as a whole, verbatim."""


class Extractor(Protocol):
    """One tool's format. Never raises on any text."""

    @property
    def name(self) -> str:
        """The tool."""
        ...

    def suits(self, text: str) -> bool:
        """Cheap look: may the text hold this tool's output?"""
        ...

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read the output, one string a line."""
        ...


LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/usr/lib/|/usr/include/|/usr/bin/\.\./lib/|/lib/python3|node_modules/|node:"
    r"|/rustc/|<frozen |java\.base/|jdk\.internal|sun\.reflect|org\.junit\.|org\.apache\.maven\.|/go[\d.-]*/src/"
)
"""Places that belong to a library or a runtime, not to whoever runs the tool."""

_MAX_DETAIL = 40


def render(d: Diagnostic) -> str:
    """A record as the text that goes into the context: place, message, expression, callers, locals, detail."""
    out = []
    place = _place(d.file, d.line, d.column)
    frames = list(d.frames)
    if frames and (frames[0].file, frames[0].line) == (d.file, d.line) and frames[0].function:
        place += f" in {frames.pop(0).function}"
    first, *more = d.message.split("\n")
    code = f" [{d.code}]" if d.code and not first.startswith(d.code) else ""
    if d.severity == "failed":
        out.append(f"FAILED {d.target}" if d.target else "FAILED")
        out.append(f"  {place + ': ' if place else ''}{first}{code}")
    else:
        target = f" ({d.target})" if d.target and d.target not in first else ""
        out.append(f"{place + ': ' if place else ''}{d.severity}: {first}{code}{target}")
    out += [f"  {line}" for line in more]
    if d.expression:
        out.append(f"  > {d.expression}")
    for frame, same in itertools.groupby(frames):
        where = _place(frame.file, frame.line, frame.column)
        times = len(list(same))
        function = f" in {frame.function}" if frame.function else ""
        out.append(f"  at {where}{function}{f' ({times} times)' if times > 1 else ''}")
    out += [f"  {name} = {value}" for name, value in d.locals]
    out += [f"  {line}" for line in d.detail[:_MAX_DETAIL]]
    if len(d.detail) > _MAX_DETAIL:
        out.append(f"  [{len(d.detail) - _MAX_DETAIL} more lines]")
    return "\n".join(out)


def _place(*parts: str | int | None) -> str:
    return ":".join(str(p) for p in parts if p is not None)


def strip_blank(lines: Sequence[str]) -> list[str]:
    """Lines without blank ones at either end."""
    start, end = 0, len(lines)
    while start < end and not lines[start].strip():
        start += 1
    while end > start and not lines[end - 1].strip():
        end -= 1
    return list(lines[start:end])


def dedent(lines: Sequence[str]) -> list[str]:
    """Lines without the margin that all of them share."""
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[margin:] for line in lines]
