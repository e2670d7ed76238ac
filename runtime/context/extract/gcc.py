"""gcc, g++, clang and the linker that they call."""

import dataclasses
import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed

_OTHERS = r"(?!\S+\.(?:pyi?|java|kt|go|rs|[cm]?[jt]sx?):)"
_DIAGNOSTIC = re.compile(
    _OTHERS
    + r"((?:[A-Za-z]:)?[^\s:()][^:()]*):(\d+)(?::(\d+))?: (fatal error|error|warning|note): (.*?)(?: \[(-W[^\]]+)\])?$"
)
_IN_FUNCTION = re.compile(
    r"[^:\s][^:]*: In (?:(?:member |static )*function|constructor|destructor|instantiation of) (.+):$"
)
_INCLUDED = re.compile(r"(?:In file included|\s+) ?from ([^:\s]+):(\d+)(?::(\d+))?[:,]")
_REQUIRED = re.compile(r"([^\s:][^:]*):(\d+):(\d+):   (?:required|recursively required)\b")
_SNIPPET = re.compile(r" *(\d+)? \| ?(.*)$")
_MARKS = re.compile(r"[\s~^|-]*[\^~][\s~^|-]*$")
_LINKER = re.compile(
    r"(?:\S*ld(?:\.\w+)?: )?(?:(\S+?):)?(?:\(\.[\w.]+\+0x[0-9a-f]+\): |(\d+): )"
    r"((?:undefined reference to|multiple definition of) [`'‘](.+?)['’].*)$"
)
_LINK_IN = re.compile(r"\S*ld(?:\.\w+)?: \S+: in function [`'‘](.+)['’]:$")
_CANNOT_FIND = re.compile(r"\S*ld(?:\.\w+)?: (cannot find (\S+?)(?:: .*)?)$")
_SUMMARY = re.compile(
    r"collect2: error|cc1\w*: |compilation terminated|\d+ (?:warnings?|errors?)(?: and \d+ errors?)? generated"
    r"|clang(?:\+\+)?: error: |gcc: |g\+\+: "
)


class GccExtractor:
    """Errors and warnings with their notes; notes that point into system headers are counted, not shown."""

    name = "gcc"

    def suits(self, text: str) -> bool:
        """A compiler's or linker's word stands in it."""
        return any(
            w in text for w in (": error: ", ": warning: ", ": fatal error: ", "undefined reference", "ld: ")
        )

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read compiler and linker output."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        frames: list[Frame] = []
        function: str | None = None
        i = 0
        while i < len(lines):
            line = lines[i]
            i += 1
            if match := _DIAGNOSTIC.match(line):
                end = _snippet_end(lines, i)
                if match[4] == "note" and found:
                    found[-1] = _with_note(found[-1], match)
                    frames = []
                else:
                    found.append(_record(match, lines[i:end], function, frames, i))
                    frames = []
                i = end
            elif match := _IN_FUNCTION.match(line):
                function = match[1]
            elif (match := _INCLUDED.match(line)) or (match := _REQUIRED.match(line)):
                column = int(match[3]) if match[3] else None
                if not LIBRARY.search(match[1]):
                    frames.append(Frame(match[1], int(match[2]), column))
            elif match := _LINK_IN.match(line):
                function = match[1]
            elif linked := _linker(line, function, i):
                found.append(linked)
            elif _SUMMARY.match(line):
                summary.append(line)
            elif line.endswith(": At top level:"):
                function = None
        return Parsed(tuple(found), tuple(summary))


def _snippet_end(lines: Sequence[str], start: int) -> int:
    """Where the source excerpt under a diagnostic ends: gcc puts a bar before each line, clang marks below one."""
    i = start
    if i < len(lines) and _SNIPPET.match(lines[i]):
        while i < len(lines) and _SNIPPET.match(lines[i]):
            i += 1
        return i
    if i + 1 < len(lines) and _MARKS.match(lines[i + 1]) and not _DIAGNOSTIC.match(lines[i]):
        i += 2
        while (
            i < len(lines) and lines[i].startswith("  ") and not _DIAGNOSTIC.match(lines[i]) and i < start + 4
        ):
            i += 1
    return i


def _record(
    match: re.Match[str], snippet: Sequence[str], function: str | None, frames: list[Frame], at: int
) -> Diagnostic:
    file, line = match[1], int(match[2])
    column = int(match[3]) if match[3] else None
    expression = None
    if snippet:
        bar = _SNIPPET.match(snippet[0])
        expression = (bar[2] if bar else snippet[0]).strip()
    context = (f"in function {function}",) if function and not LIBRARY.search(file) else ()
    severity = "warning" if match[4] == "warning" else "error"
    return Diagnostic(
        "gcc",
        match[5],
        severity,
        None,
        file,
        line,
        column,
        match[6],
        expression,
        frames=tuple(frames),
        detail=context,
        at=at,
    )


def _with_note(d: Diagnostic, match: re.Match[str]) -> Diagnostic:
    place = ":".join(p for p in match.group(1, 2, 3) if p)
    detail = list(d.detail)
    if LIBRARY.search(match[1]):
        counted = re.match(r"\[(\d+) notes? in libraries\]", detail[-1]) if detail else None
        number = int(counted[1]) + 1 if counted else 1
        detail[len(detail) - (1 if counted else 0) :] = [f"[{number} note{'s' * (number > 1)} in libraries]"]
    else:
        detail.append(f"{place}: note: {match[5]}")
    return dataclasses.replace(d, detail=tuple(detail))


def _linker(line: str, function: str | None, at: int) -> Diagnostic | None:
    if match := _LINKER.match(line):
        detail = (f"in function {function}",) if function else ()
        number = int(match[2]) if match[2] else None
        return Diagnostic("ld", match[3], target=match[4], file=match[1], line=number, detail=detail, at=at)
    if match := _CANNOT_FIND.match(line):
        return Diagnostic("ld", match[1], target=match[2], at=at)
    return None
