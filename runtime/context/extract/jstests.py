"""jest, vitest, Node's own test runner, and errors that end a Node program."""

import dataclasses
import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed, dedent, strip_blank

_FRAME = re.compile(
    r"\s*(?:at|❯) (?:(?:async )?([^\s(]+(?: \[as \w+\])?) \(?)?((?:file://)?[^\s()]+?):(\d+):(\d+)\)?$"
)
_BARE_PLACE = re.compile(r"\s*((?:file://)?/\S+?\.[cm]?[jt]sx?):(\d+)$")
_NO_PLACE = re.compile(r"\s*at .*<anonymous>\)?$")
_CODE_FRAME = re.compile(r"\s*(>?)\s*(\d*) ?\| ?(.*)$")
_NATIVE = re.compile(r"(?:Uncaught )?([A-Z]\w*Error|Error)(?: \[(\w+)\])?: ")
_JEST_FILE = re.compile(r"\s*FAIL\s+(\S+)")
_JEST_TEST = re.compile(r"\s*● (.+?)\s*$")
_JEST_END = re.compile(
    r"Test Suites: |Summary of all failing|Snapshot Summary|\s*(?:FAIL|PASS)\s+\S|-{20,}\|"
)
_VITEST = re.compile(r"\s*FAIL\s+(\S+\.[cm]?[jt]sx?)(?: > (.+?)| \[ .* \])?\s*$")
_SUMMARY = re.compile(r"\s*(?:Test Suites:|Tests:?\s|Test Files\s|Snapshots:\s+\d+ failed)")


def read_failure(
    body: Sequence[str], tool: str, target: str | None, at: int, file: str | None = None
) -> Diagnostic:
    """A JavaScript error: message up to the code frame or the stack, then own frames, nearest first."""
    message: list[str] = []
    frames: list[Frame] = []
    expression = None
    bare: re.Match[str] | None = None
    for line in strip_blank(body):
        if match := _FRAME.match(line):
            if not LIBRARY.search(match[2]):
                name = match[1] if match[1] != "Object.<anonymous>" else None
                frames.append(Frame(match[2], int(match[3]), int(match[4]), name))
        elif (match := _CODE_FRAME.match(line)) and (match[1] or match[2] or not match[3].strip(" ^")):
            # jest marks the failing line; vitest puts the excerpt under the frame that it belongs to.
            if match[1] or (len(frames) == 1 and match[2] == str(frames[0].line) and expression is None):
                expression = match[3].strip()
        elif not frames and not _NO_PLACE.match(line):
            bare = _BARE_PLACE.match(line) or bare
            message.append(line.rstrip())
    message = dedent(strip_blank(message))
    native = next((m for m in map(_NATIVE.match, message) if m), None)
    first = frames[0] if frames else None
    return Diagnostic(
        tool,
        "\n".join(line for line in message if line.strip()) or "failed",
        "failed",
        target,
        first.file if first else bare[1] if bare else file,
        first.line if first else int(bare[2]) if bare else None,
        first.column if first else None,
        (native[2] or native[1]) if native else None,
        expression,
        frames=tuple(f for k, f in enumerate(frames) if k or f.function),
        at=at,
    )


class JestExtractor:
    """jest: one block a failing test, led by a dot."""

    name = "jest"

    def suits(self, text: str) -> bool:
        """jest's dot, and its word for a file or its count (systemctl has the dot too)."""
        return "● " in text and ("FAIL " in text or "Test Suites:" in text)

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run; the summary that repeats all failures at the end of long runs counts once."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        seen: set[tuple[str | None, str]] = set()
        file: str | None = None
        for i, line in enumerate(lines):
            if match := _JEST_FILE.match(line):
                file = match[1]
            elif (match := _JEST_TEST.match(line)) and (file, match[1]) not in seen:
                seen.add((file, match[1]))
                stop = (
                    k
                    for k in range(i + 1, len(lines))
                    if _JEST_TEST.match(lines[k]) or _JEST_END.match(lines[k])
                )
                suite = match[1] == "Test suite failed to run"
                target = file if suite else match[1]
                body = _without_advice(lines[i + 1 : next(stop, len(lines))])
                d = read_failure(body, self.name, target, i + 1, file)
                found.append(with_detail(d, (f"● {match[1]}" if suite else f"in {file}",)))
            elif _SUMMARY.match(line):
                summary.append(line.strip())
        return Parsed(tuple(found), tuple(summary))


def with_detail(d: Diagnostic, more: tuple[str, ...]) -> Diagnostic:
    """The record with further lines."""
    return dataclasses.replace(d, detail=(*d.detail, *more))


def _without_advice(body: Sequence[str]) -> Sequence[str]:
    """jest explains itself at length when a file does not parse; the details come after that."""
    start = next((k for k, line in enumerate(body) if "Jest failed to parse a file" in line), None)
    end = next((k for k, line in enumerate(body) if line.strip() == "Details:"), None)
    return body if start is None or end is None else [*body[:start], *body[end + 1 :]]


class VitestExtractor:
    """vitest: one block a failing test, led by FAIL, file and test."""

    name = "vitest"

    def suits(self, text: str) -> bool:
        """vitest's bars."""
        return " FAIL " in text and ("⎯⎯" in text or "Test Files" in text)

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        for i, line in enumerate(lines):
            if match := _VITEST.match(line):
                stop = (
                    k for k in range(i + 1, len(lines)) if lines[k].startswith("⎯") or _VITEST.match(lines[k])
                )
                target = f"{match[1]} > {match[2]}" if match[2] else match[1]
                found.append(
                    read_failure(lines[i + 1 : next(stop, len(lines))], self.name, target, i + 1, match[1])
                )
            elif _SUMMARY.match(line):
                summary.append(line.strip())
        return Parsed(tuple(found), tuple(summary))


class NodeExtractor:
    """node --test, in TAP and spec form."""

    name = "node"

    def suits(self, text: str) -> bool:
        """TAP, or node's marks."""
        return "not ok " in text or "✖ " in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run."""
        found: dict[str, Diagnostic] = {}
        summary: list[str] = []
        for i, line in enumerate(lines):
            if match := re.match(r"\s*not ok \d+ - (.*)$", line):
                end = next((k for k in range(i + 1, len(lines)) if lines[k].strip() == "..."), len(lines))
                found[match[1]] = self._tap(match[1], lines[i + 1 : end], i + 1)
            elif match := re.match(r"\s*✖ (.+) \([\d.]+m?s\)$", line):
                end = next((k for k in range(i + 1, len(lines)) if re.match(r"\S", lines[k])), len(lines))
                found[match[1]] = read_failure(lines[i + 1 : end], "node test", match[1], i + 1)
            elif re.match(r"(?:#|ℹ) (?:pass|fail) \d+", line):
                summary.append(line)
        return Parsed(tuple(found.values()), tuple(summary))

    def _tap(self, name: str, body: Sequence[str], at: int) -> Diagnostic:
        message: list[str] = []
        stack: list[str] = []
        part: list[str] | None = None
        code = None
        for line in body:
            if match := re.match(r"\s*(\w+): (?:\|-|'?(.*?)'?)$", line):
                part = message if match[1] == "error" else stack if match[1] == "stack" else None
                code = match[2] if match[1] == "code" else code
                if part is not None and match[2]:
                    part.append(match[2])
                elif match[1] in ("expected", "actual"):
                    message.append(line.strip())
            elif part is not None:
                part.append(line)
        frames = ["at " + line.strip() for line in stack]
        d = read_failure(
            ["\n".join(text.strip() for text in message if text.strip()), *frames], "node test", name, at
        )
        return Diagnostic(
            d.tool,
            d.message,
            d.severity,
            d.target,
            d.file,
            d.line,
            d.column,
            code or d.code,
            frames=d.frames,
            at=at,
        )


class ThrownExtractor:
    """Errors that ended a Node program."""

    name = "javascript"

    def suits(self, text: str) -> bool:
        """node's version line, which it prints under such an error."""
        return "\nNode.js v" in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """One record."""
        end = next((i for i, line in enumerate(lines) if i and line.startswith("Node.js v")), None)
        return Parsed(() if end is None else (self._thrown(lines[:end]),))

    def _thrown(self, lines: Sequence[str]) -> Diagnostic:
        start = next((k for k in range(len(lines) - 1, -1, -1) if _NATIVE.match(lines[k])), 0)
        at = next((k for k in range(start, -1, -1) if re.match(r"(?:file://)?\S+:\d+$", lines[k])), start)
        d = read_failure(lines[start:], self.name, None, at + 1)
        expression = lines[at + 1].strip() if at + 1 < start else None
        return Diagnostic(
            d.tool,
            d.message,
            "error",
            None,
            d.file,
            d.line,
            d.column,
            d.code,
            expression,
            frames=d.frames,
            at=at + 1,
        )
