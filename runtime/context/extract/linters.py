"""mypy, ruff, eslint and tsc."""

import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import Diagnostic, Parsed

_MYPY = re.compile(r"(\S+\.pyi?):(\d+)(?::(\d+)(?::\d+:\d+)?)?: (error|warning|note): (.*)$")
_MYPY_CODE = re.compile(r"\s+\[([a-z][a-z0-9-]*)\]$")
_RUFF_HEAD = re.compile(r"([A-Z]{1,4}\d{3,4}|invalid-syntax):? (?:\[\*\] )?(\S.*)$")
_RUFF_LINE = re.compile(r"(\S+?):(\d+):(\d+): ([A-Z]{1,4}\d{3,4}|invalid-syntax):? (?:\[\*\] )?(.*)$")
_ARROW = re.compile(r" *--> (.+?):(\d+):(\d+)$")
_BARRED = re.compile(r" *(\d+) \| (.*)$")
_TSC = re.compile(r"(.+?)\((\d+),(\d+)\): (error|warning) (TS\d+): (.*)$")
_TSC_PRETTY = re.compile(r"(\S.*?):(\d+):(\d+) - (error|warning) (TS\d+): (.*)$")
_ESLINT = re.compile(r"\s+(\d+):(\d+)\s+(error|warning)\s+(.*?)(?:\s{2,}([\w@/-]+))?$")


class MypyExtractor:
    """mypy, one line each or pretty, where the terminal's width wraps messages."""

    name = "mypy"

    def suits(self, text: str) -> bool:
        """mypy's lines or its count."""
        return ".py" in text and ": error: " in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        i = 0
        while i < len(lines):
            match = _MYPY.match(lines[i])
            i += 1
            if match is None:
                if re.match(r"Found \d+ errors? in|Success: ", lines[i - 1]):
                    summary.append(lines[i - 1])
                continue
            at, message = i, match[5]
            while (
                match[4] != "note"
                and not _MYPY_CODE.search(message)
                and i < len(lines)
                and _is_wrapped(lines, i, message)
            ):
                message += " " + lines[i].strip()
                i += 1
            code = _MYPY_CODE.search(message)
            expression = (
                lines[i].strip() if i + 1 < len(lines) and re.match(r"\s+\^~*\s*$", lines[i + 1]) else None
            )
            found.append(
                Diagnostic(
                    self.name,
                    message[: code.start()] if code else message,
                    match[4],
                    file=match[1],
                    line=int(match[2]),
                    column=int(match[3]) if match[3] else None,
                    code=code[1] if code else None,
                    expression=expression,
                    at=at,
                )
            )
        return Parsed(tuple(found), tuple(summary))


def _is_wrapped(lines: Sequence[str], i: int, message: str) -> bool:
    """A wrapped message goes on in column 0 and ends with its code a few lines on."""
    if not lines[i] or lines[i][0].isspace() or _MYPY.match(lines[i]):
        return False
    return any(_MYPY_CODE.search(line) for line in lines[i : i + 4] if not _MYPY.match(line))


class RuffExtractor:
    """ruff, full and concise."""

    name = "ruff"

    def suits(self, text: str) -> bool:
        """ruff's count or a rule before a place."""
        return ".py" in text and ("\nFound " in text or "--> " in text)

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        for i, line in enumerate(lines):
            if match := _RUFF_LINE.match(line):
                place = (match[1], int(match[2]), int(match[3]))
                found.append(Diagnostic(self.name, match[5], "error", None, *place, match[4], at=i + 1))
            elif (
                (match := _RUFF_HEAD.match(line))
                and i + 1 < len(lines)
                and (arrow := _ARROW.match(lines[i + 1]))
            ):
                found.append(self._full(match, arrow, lines, i))
            elif re.match(r"Found \d+ errors?\.?$", line):
                summary.append(line)
        return Parsed(tuple(found), tuple(summary))

    def _full(self, match: re.Match[str], arrow: re.Match[str], lines: Sequence[str], i: int) -> Diagnostic:
        expression, helped = None, []
        for line in lines[i + 2 : i + 30]:
            if not line.strip():
                break
            bar = _BARRED.match(line)
            if bar and bar[1] == arrow[2] and expression is None:
                expression = bar[2].strip()
            elif line.startswith("help: "):
                helped.append(line)
        place = (arrow[1], int(arrow[2]), int(arrow[3]))
        return Diagnostic(
            self.name, match[2], "error", None, *place, match[1], expression, detail=tuple(helped), at=i + 1
        )


class TscExtractor:
    """The TypeScript compiler, plain and pretty."""

    name = "tsc"

    def suits(self, text: str) -> bool:
        """A TypeScript code."""
        return " TS" in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        i = 0
        while i < len(lines):
            match = _TSC.match(lines[i]) or _TSC_PRETTY.match(lines[i])
            i += 1
            if match is None:
                if re.match(r"Found \d+ errors? in", lines[i - 1]):
                    summary.append(lines[i - 1])
                continue
            at, detail = i, []
            while i < len(lines) and re.match(r"\s+\S", lines[i]) and "~" not in lines[i]:
                detail.append(lines[i].strip())
                i += 1
            expression = None
            if (
                i + 1 < len(lines)
                and not lines[i].strip()
                and (source := re.match(r"\d+ (.*)$", lines[i + 1]))
            ):
                expression = source[1].strip()
            place = (match[1], int(match[2]), int(match[3]))
            found.append(
                Diagnostic(
                    self.name,
                    match[6],
                    match[4],
                    None,
                    *place,
                    match[5],
                    expression,
                    detail=tuple(detail),
                    at=at,
                )
            )
        return Parsed(tuple(found), tuple(summary))


class EslintExtractor:
    """eslint's default (stylish) format, which names the file once above its lines."""

    name = "eslint"

    def suits(self, text: str) -> bool:
        """eslint's count."""
        return "problem" in text and ("  error  " in text or "  warning  " in text)

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        file: str | None = None
        for i, line in enumerate(lines):
            if match := _ESLINT.match(line):
                place = (file, int(match[1]), int(match[2]))
                found.append(Diagnostic(self.name, match[4], match[3], None, *place, match[5], at=i + 1))
            elif re.match(r"✖ \d+ problems?", line):
                summary.append(line)
            elif line and not line[0].isspace() and re.search(r"\.\w+$", line):
                file = line
        return Parsed(tuple(found), tuple(summary))
