"""javac and Maven, with Surefire's test results."""

import dataclasses
import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed

_JAVAC = re.compile(r"(\S+\.java):(\d+): (error|warning): (?:\[([\w-]+)\] )?(.*)$")
_MAVEN_PLACE = re.compile(r"\[(ERROR|WARNING)\] (\S+\.(?:java|kt)):\[(\d+),(\d+)\] (.*)$")
_SUREFIRE = re.compile(
    r"(?:\[ERROR\] )?([\w.$]+(?:\([^)]*\))?(?:\[[^\]]*\])?)(?: --|  ) ?Time elapsed: .*<<< (FAILURE|ERROR)!(?: -- in .*)?$"
)
_FRAME = re.compile(r"\s+at (?:[\w.]+@?[\w.]*/)?([\w.$<>]+)\((\w+\.(?:java|kt)):(\d+)\)$")
_ANY_FRAME = re.compile(r"\s+at |\s+\.\.\. \d+ more")
_CAUSE = re.compile(r"Caused by: (.*)$")
_GOAL = re.compile(r"\[ERROR\] (Failed to execute goal (\S+).*)$")
_COUNTS = re.compile(r"\[(?:ERROR|WARNING|INFO)\] (Tests run: .*Failures: .*)$")
_END = re.compile(r"\[INFO\] (BUILD \w+)|(\d+ (?:errors?|warnings?))$")
_THROWN = re.compile(r"(?:Exception in thread \"(.+?)\" )?((?:[a-z_]\w*\.)+[A-Z]\w*(?:Exception|Error)\b.*)$")
_NATIVE = re.compile(r"((?:[\w$]+\.)*[\w$]*(?:Exception|Error|Throwable)\b[\w$]*)(?:: (.*))?$")


class JavaExtractor:
    """Compile errors with symbol and location, failing tests with their own frames, goals that failed."""

    name = "java"

    def suits(self, text: str) -> bool:
        """A Java file or Maven's marks."""
        return ".java:" in text or "[ERROR] " in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read javac's or Maven's output."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        seen: set[tuple[str, str, str]] = set()
        i = 0
        while i < len(lines):
            line = lines[i]
            i += 1
            if match := _JAVAC.match(line):
                end = _javac_end(lines, i)
                found.append(_javac(match, lines[i:end], i))
                i = end
            elif match := _MAVEN_PLACE.match(line):
                end = _indented(lines, i)
                key = (match[2], match[3], match[5])
                if key not in seen:  # Maven says everything twice
                    seen.add(key)
                    place = (match[2], int(match[3]), int(match[4]))
                    detail = tuple(text.removeprefix("[ERROR]").strip() for text in lines[i:end])
                    found.append(
                        Diagnostic("javac", match[5], match[1].lower(), None, *place, detail=detail, at=i)
                    )
                i = end
            elif (match := _SUREFIRE.match(line)) and not match[1].startswith("Tests"):
                end = _trace_end(lines, i)
                found.append(read_trace(lines[i:end], "surefire", match[1], i))
                i = end
            elif match := _GOAL.match(line):
                found.append(Diagnostic("maven", match[1], target=match[2], at=i))
            elif (match := _COUNTS.match(line)) and " -- in " not in line:
                summary.append(match[1])
            elif match := _END.match(line):
                summary.append(match[1] or match[2])
        return Parsed(tuple(found), tuple(summary))


def _javac_end(lines: Sequence[str], start: int) -> int:
    """After the source line, its caret, and the indented lines on symbols and types."""
    caret = next(
        (k for k in range(start, min(start + 3, len(lines))) if re.match(r"\s*\^\s*$", lines[k])), None
    )
    i = start if caret is None else caret + 1
    while i < len(lines) and lines[i].startswith(" "):
        i += 1
    return i


def _javac(match: re.Match[str], body: Sequence[str], at: int) -> Diagnostic:
    caret = next((k for k, line in enumerate(body) if re.match(r"\s*\^\s*$", line)), None)
    expression = body[caret - 1].strip() if caret else None
    column = body[caret].index("^") + 1 if caret else None
    detail = tuple(line.strip() for line in body[(caret + 1 if caret is not None else 0) :])
    return Diagnostic(
        "javac",
        match[5],
        match[3],
        None,
        match[1],
        int(match[2]),
        column,
        match[4],
        expression,
        detail=detail,
        at=at,
    )


def _indented(lines: Sequence[str], start: int) -> int:
    i = start
    while i < len(lines) and re.match(r"(?:\[ERROR\])?\s{2,}\S", lines[i]):
        i += 1
    return i


def _trace_end(lines: Sequence[str], start: int) -> int:
    i = start
    while i < len(lines) and lines[i].strip() and not re.match(r"\[(?:ERROR|INFO|WARNING)\]", lines[i]):
        i += 1
    return i


def read_trace(body: Sequence[str], tool: str, target: str, at: int) -> Diagnostic:
    """A Java exception with its frames; placed at the innermost own frame."""
    message: list[str] = []
    frames: list[Frame] = []
    detail: list[str] = []
    for line in body:
        if match := _FRAME.match(line):
            if not LIBRARY.search(line):
                frames.append(Frame(match[2], int(match[3]), None, match[1]))
        elif match := _CAUSE.match(line):
            detail.append(line)
        elif not _ANY_FRAME.match(line):
            (message if not frames and not detail else detail).append(line.rstrip())
    native = _NATIVE.match(message[0]) if message else None
    return Diagnostic(
        tool,
        "\n".join(message) or "failed",
        "failed",
        target,
        frames[0].file if frames else None,
        frames[0].line if frames else None,
        code=native[1] if native else None,
        frames=tuple(frames),
        detail=tuple(detail),
        at=at,
    )


class JvmExtractor:
    """Exceptions that ended a Java program or that one printed."""

    name = "jvm"

    def suits(self, text: str) -> bool:
        """A Java frame."""
        return "\tat " in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """One record an exception, its causes in the detail."""
        found: list[Diagnostic] = []
        i = 0
        while i < len(lines):
            match = _THROWN.match(lines[i])
            if match and i + 1 < len(lines) and _ANY_FRAME.match(lines[i + 1]):
                end = i + 1
                while end < len(lines) and (_ANY_FRAME.match(lines[end]) or _CAUSE.match(lines[end].strip())):
                    end += 1
                d = read_trace([match[2], *lines[i + 1 : end]], self.name, match[1] or "", i + 1)
                found.append(dataclasses.replace(d, severity="error", target=match[1]))
                i = end
                continue
            i += 1
        return Parsed(tuple(found))
