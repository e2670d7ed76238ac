"""go build, go vet and go test."""

import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed

_PACKAGE = re.compile(r"# (\S+)$")
_DIAGNOSTIC = re.compile(r"(?:vet: )?(\S+\.go):(\d+)(?::(\d+))?: (.*)$")
_RUN = re.compile(r"=== (?:RUN|CONT|NAME)\s+(\S+)$")
_FAIL = re.compile(r"\s*--- FAIL: (\S+) \([\d.]+s\)")
_OTHER_RESULT = re.compile(r"\s*--- (?:PASS|SKIP): (\S+)")
_LOGGED = re.compile(r"(\s+)(\S+\.go):(\d+): (.*)$")
_PANIC = re.compile(r"(panic: .*|fatal error: .*)$")
_FRAME_AT = re.compile(r"\t(\S+\.go):(\d+)(?: \+0x[0-9a-f]+)?$")
_PACKAGE_FAIL = re.compile(r"FAIL\t(\S+)(?:\t[\d.]+s| \[(.*)\])$")


class GoExtractor:
    """Compile and vet errors by package; failing tests with what they logged; panics with their own frames."""

    name = "go"

    def suits(self, text: str) -> bool:
        """A Go file or a Go test's word."""
        return ".go:" in text or "--- FAIL: " in text or "FAIL\t" in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a run, verbose or not."""
        found: list[Diagnostic] = []
        logs: dict[str, list[tuple[str, int, list[str]]]] = {}
        fails: dict[str, int] = {}
        package: str | None = None
        current: str | None = None
        # A line "file.go:3: text" alone may as well come from grep: go names the package first, or a failed build.
        built = any(_PACKAGE_FAIL.match(line) for line in lines)
        i = 0
        while i < len(lines):
            line = lines[i]
            i += 1
            if match := _PACKAGE.match(line):
                package = match[1]
            elif (match := _DIAGNOSTIC.match(line)) and (package or built or match[0].startswith("vet: ")):
                start = i
                while i < len(lines) and lines[i].startswith("\t"):
                    i += 1
                place = (match[1], int(match[2]), int(match[3]) if match[3] else None)
                more = tuple(text.strip() for text in lines[start:i])
                found.append(Diagnostic("go", match[4], "error", package, *place, detail=more, at=start))
            elif match := _RUN.match(line):
                current = match[1]
            elif match := _FAIL.match(line):
                current = match[1]
                fails.setdefault(current, i)
            elif match := _OTHER_RESULT.match(line):
                current = match[1]
            elif match := _LOGGED.match(line):
                text = [match[4]]
                while (
                    i < len(lines) and lines[i].startswith(match[1] + "    ") and not _LOGGED.match(lines[i])
                ):
                    text.append(lines[i].strip())
                    i += 1
                logs.setdefault(current or "", []).append((match[2], int(match[3]), text))
            elif match := _PANIC.match(line):
                i = self._panic(lines, i, match[1], current, found)
            elif match := _PACKAGE_FAIL.match(line):
                found.append(
                    Diagnostic("go test", f"FAIL {match[2] or ''}".strip(), "failed", match[1], at=i)
                )
        panicked = {d.target for d in found if d.tool == "go test"}
        for test, at in fails.items():
            if test not in panicked or test in logs:
                found.append(_failed(test, at, logs.get(test, [])))
        return Parsed(tuple(sorted(found, key=lambda d: d.at)))

    def _panic(
        self, lines: Sequence[str], i: int, message: str, test: str | None, found: list[Diagnostic]
    ) -> int:
        start, text = i, [message]
        while i < len(lines) and (lines[i].startswith("\tpanic: ") or lines[i].startswith("[signal ")):
            text.append(lines[i].strip())
            i += 1
        frames: list[Frame] = []
        while i < len(lines) and not re.match(r"FAIL\b|exit status|=== ", lines[i]):
            if (match := _FRAME_AT.match(lines[i])) and not LIBRARY.search(match[1]):
                function = re.sub(r"\([^()]*\)$", "", lines[i - 1])
                frames.append(Frame(match[1], int(match[2]), None, function))
            i += 1
        file, line = (frames[0].file, frames[0].line) if frames else (None, None)
        found.append(
            Diagnostic(
                "go test",
                "\n".join(text),
                "failed",
                test,
                file,
                line,
                code="panic",
                frames=tuple(frames),
                at=start,
            )
        )
        return i


def _failed(test: str, at: int, logged: list[tuple[str, int, list[str]]]) -> Diagnostic:
    if not logged:
        return Diagnostic("go test", "failed", "failed", test, at=at)
    file, line, text = logged[-1]
    detail = [f"{f}:{n}: {' '.join(t)}" for f, n, t in logged[:-1]]
    return Diagnostic("go test", "\n".join(text), "failed", test, file, line, detail=tuple(detail), at=at)
