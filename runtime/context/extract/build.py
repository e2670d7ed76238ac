"""make, cmake, ninja and ctest."""

import itertools
import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import Diagnostic, Frame, Parsed, strip_blank

_MAKE = re.compile(
    r"(\w*make(?:\[\d+\])?): \*\*\* \[(?:([^:\]]+):(\d+): )?([^\]]+)\] (Error \d+|[A-Z][\w ]+?)(?: \(ignored\))?$"
)
_MAKE_STOP = re.compile(r"(\w*make(?:\[\d+\])?): \*\*\* (.*?)(?:\s+Stop\.)?$")
_MAKE_PLACE = re.compile(r"([^:\s]+):(\d+): \*\*\* (.*?)(?:\s+Stop\.)?$")
_RULE = re.compile(r"No rule to make target [`'‘](.+?)['’]")
_NINJA = re.compile(r"FAILED: (?:\[code=\d+\] )?(\S.*?)\s*$")
_NINJA_STOP = re.compile(r"ninja: build stopped: ")
_NINJA_ERROR = re.compile(r"ninja: (?:error|fatal): (?:(\S+?):(\d+): )?((?:'(.+?)', needed by )?.*)$")
_CMAKE_CALLER = re.compile(r"\s+(\S+):(\d+) \((\w+)\)$")
_CMAKE = re.compile(
    r"CMake (Error|Warning|Deprecation Warning)(?: \(dev\))?(?: at (.+?):(\d+) \((\w+)\))?:\s*(.*)$"
)
_CTEST = re.compile(r"\s*\d+/\d+ Test +#\d+: (\S+) \.*(?:\s*(\w[\w ]*))?\*\*\*(\S.*?)\s+[\d.]+ sec")
_CTEST_COUNT = re.compile(r"\d+% tests passed, \d+ tests? failed out of \d+")
_ASSERT = re.compile(r".*?([^\s:]+):(\d+): (.+?): (Assertion [`'].+' failed)")


class BuildExtractor:
    """Targets that failed, with their rule's place; configure errors; failing ctest tests with their output."""

    name = "build"

    def suits(self, text: str) -> bool:
        """A build tool's failing word."""
        return any(
            word in text
            for word in ("*** ", "FAILED: ", "CMake Error", "CMake Warning", "tests passed, ", "ninja: ")
        )

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read the output; what compilers print in between is theirs."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        for i, line in enumerate(lines):
            if match := _MAKE.match(line):
                file, number = (match[2], int(match[3])) if match[2] else (None, None)
                found.append(
                    Diagnostic("make", match[5], "error", match[4], file, number, code=match[5], at=i + 1)
                )
            elif match := _MAKE_STOP.match(line) or _MAKE_PLACE.match(line):
                found.append(_stopped(match, i + 1))
            elif match := _NINJA.match(line):
                found.append(Diagnostic("ninja", "FAILED: " + match[1], target=match[1], at=i + 1))
            elif match := _NINJA_ERROR.match(line):
                number = int(match[2]) if match[2] else None
                found.append(Diagnostic("ninja", match[3], "error", match[4], match[1], number, at=i + 1))
            elif match := _CMAKE.match(line):
                found.append(_cmake(match, lines, i))
            elif match := _CTEST.match(line):
                found.append(_ctest(match, lines, i))
            elif (
                _NINJA_STOP.match(line)
                or _CTEST_COUNT.match(line)
                or line.startswith("-- Configuring incomplete")
            ):
                summary.append(line)
        return Parsed(tuple(found), tuple(summary))


def _stopped(match: re.Match[str], at: int) -> Diagnostic:
    message = match[match.re.groups]
    rule = _RULE.search(message)
    file, line = (match[1], int(match[2])) if match.re is _MAKE_PLACE else (None, None)
    return Diagnostic("make", message, "error", rule[1] if rule else None, file, line, at=at)


def _cmake(match: re.Match[str], lines: Sequence[str], i: int) -> Diagnostic:
    k = i + 1
    while k < len(lines) and (lines[k].startswith("  ") or not lines[k].strip()):
        k += 1
    body = [line.strip() for line in strip_blank(lines[i + 1 : k]) if line.strip()]
    message = "\n".join(([match[5]] if match[5] else []) + body)
    frames: list[Frame] = []
    if k < len(lines) and lines[k].startswith("Call Stack"):
        calls = itertools.takewhile(lambda m: m is not None, map(_CMAKE_CALLER.match, lines[k + 1 :]))
        frames = [Frame(m[1], int(m[2]), None, m[3]) for m in calls if m]
    severity = "error" if match[1] == "Error" else "warning"
    line = int(match[3]) if match[3] else None
    return Diagnostic("cmake", message, severity, match[4], match[2], line, frames=tuple(frames), at=i + 1)


def _ctest(match: re.Match[str], lines: Sequence[str], i: int) -> Diagnostic:
    k = i + 1
    while k < len(lines) and not re.match(r"\s+Start +\d+: |\s*\d+/\d+ Test +#|\d+% tests passed", lines[k]):
        k += 1
    body = strip_blank(lines[i + 1 : k])
    outcome = f"{match[2] or ''}***{match[3]}".strip()
    for line in body:
        if found := _ASSERT.match(line):
            detail = tuple(b for b in body if b != line)
            return Diagnostic(
                "ctest",
                line,
                "failed",
                match[1],
                found[1],
                int(found[2]),
                expression=found[4],
                detail=(outcome, *detail),
                at=i + 1,
            )
    return Diagnostic("ctest", outcome, "failed", match[1], detail=tuple(body), at=i + 1)
