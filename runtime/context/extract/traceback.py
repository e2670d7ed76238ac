"""Python tracebacks: frames, source lines, locals, exception."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed

_FRAME = re.compile(r'(\s*)File "([^"]+)", line (\d+)(?:, in (.+))?\s*$')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?$")
_LOCAL = re.compile(r"\s+([A-Za-z_]\w*)\s*= (.*)$")
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
    """Tracebacks of programs that a test runner's extractor does not claim."""

    name = "python"

    def suits(self, text: str) -> bool:
        """A traceback or a syntax error stands in it."""
        return 'File "' in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """All of them."""
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
