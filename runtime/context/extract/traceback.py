"""Python tracebacks: frames, source lines, locals, exception."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed

_FRAME = re.compile(r'(\s*)File "([^"]+)", line (\d+)(?:, in (.+))?\s*$')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?$")
_LOCAL = re.compile(r"\s+([A-Za-z_]\w*)\s*= (.*)$")
_GROUP_MARGIN = re.compile(r"^(?:\s*[|+])+ ?")
_GROUP_RULE = re.compile(r"\s*\+-[+-]")
_MARKS = re.compile(r"[\s^~]+$")


@dataclass(frozen=True, slots=True)
class Traceback:
    """One traceback. `end`: index of the first line after it."""

    frames: tuple[Frame, ...]
    """Outermost first, libraries included."""
    sources: tuple[str, ...]
    """The source line of each frame."""
    locals: tuple[tuple[tuple[str, str], ...], ...]
    """Names and values of each frame."""
    exception: str
    message: str
    end: int

    def nearest(self) -> int:
        """Index of the innermost frame that is not a library's; the innermost where all are."""
        own = [
            i for i, f in enumerate(self.frames) if not LIBRARY.search(f.file) and not f.file.startswith("<")
        ]
        return own[-1] if own else len(self.frames) - 1


def read_traceback(lines: Sequence[str], start: int) -> Traceback | None:
    """The traceback whose first frame line is at or right after `start`; None when there is none."""
    i = start if start < len(lines) and _FRAME.match(lines[start]) else start + 1
    frames: list[Frame] = []
    sources: list[str] = []
    values: list[tuple[tuple[str, str], ...]] = []
    indent = ""
    while i < len(lines) and (match := _FRAME.match(lines[i])):
        indent = match[1]
        frames.append(Frame(match[2], int(match[3]), None, match[4] if match[4] != "<module>" else None))
        body: list[str] = []
        i += 1
        while i < len(lines) and lines[i].startswith(indent + "  ") and not _FRAME.match(lines[i]):
            body.append(lines[i])
            i += 1
        sources.append(body[0].strip() if body else "")
        values.append(_locals(body[1:]))
        while i < len(lines) and re.match(r"\s*\[Previous line repeated", lines[i]):
            i += 1
    if not frames:
        return None
    outer = indent[:-2]
    match = (
        _EXCEPTION.match(lines[i][len(outer) :]) if i < len(lines) and lines[i].startswith(outer) else None
    )
    if match is None:
        return Traceback(tuple(frames), tuple(sources), tuple(values), "", "", i)
    message = [match[2] or ""]
    i += 1
    while i < len(lines) and lines[i].strip() and not re.match(r"[=_-]{10,}|Traceback|\s*File \"", lines[i]):
        message.append(lines[i][len(outer) :])
        i += 1
    return Traceback(tuple(frames), tuple(sources), tuple(values), match[1], "\n".join(message), i)


def last_traceback(lines: Sequence[str], start: int, end: int) -> tuple[Traceback | None, list[str]]:
    """The traceback that a chain ends with, its message up to `end`, and lines on the exceptions that led to it."""
    found: list[Traceback] = []
    causes: list[str] = []
    i = start
    while i < end:
        if "Traceback (most recent call last)" in lines[i] and (tb := read_traceback(lines, i)) is not None:
            if tb.exception:
                found.append(tb)
            i = max(tb.end, i + 1)
            continue
        # unittest cuts the frames of causes away and leaves the exception alone
        if not found and (match := _EXCEPTION.match(lines[i])) and match[2] and match[1][-1:].isalpha():
            causes.append(f"caused by {lines[i]}")
        i += 1
    if not found:
        return None, causes
    for tb in found[:-1]:
        k = tb.nearest()
        first, *more = tb.message.split("\n")
        causes += [f"caused by {tb.exception}: {first}" if first else f"caused by {tb.exception}", *more]
        causes += [frame_line(f) for f in tb.frames[: k + 1][::-1] if not LIBRARY.search(f.file)]
    last = found[-1]
    rest = list(lines[last.end : end])
    while rest and not rest[-1].strip():
        rest.pop()
    message = "\n".join([last.message, *(line for line in rest if not re.match(r"[-=]{20,}$", line))])
    return dataclasses.replace(last, message=message, end=end), causes


def frame_line(frame: Frame) -> str:
    """A frame as a line of detail."""
    return f"at {frame.file}:{frame.line}" + (f" in {frame.function}" if frame.function else "")


def _locals(body: Sequence[str]) -> tuple[tuple[str, str], ...]:
    matches = (_LOCAL.match(line) for line in body if not _MARKS.match(line))
    return tuple((m[1], m[2]) for m in matches if m)


def diagnostic(
    tb: Traceback, tool: str, severity: str, target: str | None, at: int, detail: Sequence[str] = ()
) -> Diagnostic:
    """A record of a traceback: placed at the innermost own frame, callers nearest first."""
    k = tb.nearest()
    here = tb.frames[k]
    callers = [f for f in tb.frames[:k][::-1] if not LIBRARY.search(f.file)]
    if here.function:
        callers.insert(0, here)
    text = f"{tb.exception}: {tb.message}" if tb.message else tb.exception
    return Diagnostic(
        tool,
        text or "traceback without an exception",
        severity,
        target,
        here.file,
        here.line,
        code=tb.exception or None,
        expression=tb.sources[k] or None,
        locals=tb.locals[k],
        frames=tuple(callers),
        detail=tuple(detail),
        at=at,
    )


class TracebackExtractor:
    """Tracebacks of programs that a test runner's extractor does not claim, exception groups included."""

    name = "python"

    def suits(self, text: str) -> bool:
        """A traceback or a syntax error stands in it."""
        return 'File "' in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """All of them."""
        if any("Exception Group Traceback" in line for line in lines):
            lines = ["" if _GROUP_RULE.match(line) else _GROUP_MARGIN.sub("", line) for line in lines]
        found: list[Diagnostic] = []
        i = 0
        while i < len(lines):
            if "Traceback (most recent call last)" in lines[i] or _FRAME.match(lines[i]):
                tb = read_traceback(lines, i)
                if tb is not None and tb.exception:
                    found.append(diagnostic(tb, self.name, "error", None, i + 1))
                    i = tb.end
                    continue
            i += 1
        return Parsed(tuple(found))
