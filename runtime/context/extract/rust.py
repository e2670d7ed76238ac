"""rustc, cargo and the Rust test runner."""

import itertools
import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed, strip_blank

_HEAD = re.compile(r"(error|warning)(?:\[(\w+)\])?: (.*)$")
_ARROW = re.compile(r" *(?:-->|:::) (.+?):(\d+):(\d+)$")
_SOURCE = re.compile(r" *(\d+) +\| ?(.*)$")
_LABEL = re.compile(r" *\|[\s|^-]*[\^-] +([^\s|^-].*)$")
_LABEL_BELOW = re.compile(r" *\| [ |]*([A-Za-z`].*)$")
_NOTE = re.compile(r" *= (note|help): (.*)$|(note|help): (.*)$")
_SHORT = re.compile(r"(\S+\.rs):(\d+):(\d+): (error|warning)(?:\[(\w+)\])?: (.*)$")
_FAILED = re.compile(r"test (.+?)(?: - should panic)? \.\.\. FAILED$")
_SECTION = re.compile(r"---- (.+?) std(?:out|err) ----$")
_AT = re.compile(r"\s+at (\S+?):(\d+):(\d+)$")
_PANIC = re.compile(
    r"thread '.*?'(?: \(\d+\))? panicked at (?:'(?P<old>.*)', )?(?P<file>[^:]+):(?P<line>\d+):(?P<col>\d+):?$"
)
_NOT_PANIC = re.compile(r"note: (test did not panic as expected)(?: at ([^:]+):(\d+):(\d+))?")
_RERUN = re.compile(r"error: test failed, to rerun pass [`'](.+?)[`']")
_SUMMARY = re.compile(
    r"error: could not compile|error: aborting due to|test result: FAILED|error: \d+ targets? failed|For more information"
    r"|(?:warning|error): .* generated \d+ warning|    `--.+`$|error: process didn't exit"
)


class RustExtractor:
    """Compiler diagnostics in the long and the short form, failing tests with panic place, message and output."""

    name = "rust"

    def suits(self, text: str) -> bool:
        """A rustc head, or a failing Rust test."""
        return (
            "error[E" in text
            or "\n  --> " in text
            or ".rs:" in text
            or " ... FAILED" in text
            or "error: " in text
        )

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read the output of rustc, cargo build and cargo test."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        failed: dict[str, int] = {}
        told: set[str] = set()
        i = 0
        while i < len(lines):
            line = lines[i]
            i += 1
            if match := _RERUN.match(line):
                found.append(Diagnostic("cargo test", line[7:], target=match[1], at=i))
            elif _SUMMARY.match(line):
                summary.append(line.strip())
            elif match := _SHORT.match(line):
                place = (match[1], int(match[2]), int(match[3]))
                found.append(Diagnostic("rustc", match[6], match[4], None, *place, match[5], at=i))
            elif match := _FAILED.match(line):
                failed[match[1]] = i
            elif match := _SECTION.match(line):
                end = _section_end(lines, i)
                found.append(_test(match[1], lines[i:end], i))
                told.add(match[1])
                i = end
            elif (match := _HEAD.match(line)) and _has_arrow(lines, i):
                end = _diagnostic_end(lines, i)
                found.append(_compiler(match, lines[i:end], i))
                i = end
        silent = [
            Diagnostic("cargo test", "failed", "failed", t, at=n) for t, n in failed.items() if t not in told
        ]
        return Parsed(tuple(found + silent), tuple(summary))


def _has_arrow(lines: Sequence[str], i: int) -> bool:
    """The place follows the head, after further lines of the message at most."""
    return any(_ARROW.match(line) and "-->" in line for line in lines[i : i + 4])


def _diagnostic_end(lines: Sequence[str], start: int) -> int:
    """Up to the next head; `help:` and `note:` parts stand after an empty line sometimes."""
    i = start
    while i < len(lines):
        if not lines[i].strip() and not (i + 1 < len(lines) and re.match(r"(?:help|note): ", lines[i + 1])):
            return i
        if i > start and (_HEAD.match(lines[i]) or _SUMMARY.match(lines[i])):
            return i
        i += 1
    return i


def _compiler(match: re.Match[str], body: Sequence[str], at: int) -> Diagnostic:
    place: tuple[str, int, int] | None = None
    expression, detail = None, []
    message = match[3]
    in_help = False
    for line in body:
        if arrow := _ARROW.match(line):
            if place is None:
                place = (arrow[1], int(arrow[2]), int(arrow[3]))
            elif not LIBRARY.search(arrow[1]):
                detail.append(f"at {arrow[1]}:{arrow[2]}:{arrow[3]}")
        elif note := _NOTE.match(line):
            detail.append(f"{note[1] or note[3]}: {note[2] or note[4]}")
            in_help = note[3] == "help"
        elif source := _SOURCE.match(line):
            if in_help:
                detail.append(source[2].strip())
            elif place is not None and int(source[1]) == place[1] and expression is None:
                expression = source[2].strip()
        elif not in_help and ((label := _LABEL.match(line)) or (label := _LABEL_BELOW.match(line))):
            detail.append(label[1])
        elif place is None and line.strip() and not line.lstrip().startswith("|"):
            message += "\n" + line
    file, number, column = place if place else (None, None, None)
    return Diagnostic(
        "rustc",
        message,
        match[1],
        None,
        file,
        number,
        column,
        match[2],
        expression,
        detail=tuple(detail),
        at=at,
    )


def _section_end(lines: Sequence[str], start: int) -> int:
    i = start
    while i < len(lines) and not _SECTION.match(lines[i]) and lines[i].rstrip() != "failures:":
        i += 1
    return i


def _test(name: str, body: Sequence[str], at: int) -> Diagnostic:
    """One `---- name stdout ----` section: what the test printed, then the panic with its message."""
    body = [line for line in strip_blank(body) if not line.startswith("note: run with `RUST_BACKTRACE")]
    for k, line in enumerate(body):
        if panic := _PANIC.match(line):
            message = [panic["old"]] if panic["old"] else []
            rest = list(body[k + 1 :])
            stop = next(
                (n for n, text in enumerate(rest) if not text.strip() or text == "stack backtrace:"),
                len(rest),
            )
            message += rest[:stop]
            place = (panic["file"], int(panic["line"]), int(panic["col"]))
            frames = _backtrace(rest[stop:])
            text = "\n".join(part.strip() for part in message) or "panicked"
            printed = tuple(line for line in body[:k] if line.strip())
            return Diagnostic(
                "cargo test", text, "failed", name, *place, frames=frames, detail=printed, at=at
            )
        if (no := _NOT_PANIC.match(line)) and no[2]:
            return Diagnostic("cargo test", no[1], "failed", name, no[2], int(no[3]), int(no[4]), at=at)
    return Diagnostic("cargo test", "\n".join(body) or "failed", "failed", name, at=at)


def _backtrace(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Own frames of a `RUST_BACKTRACE=1` backtrace, nearest first."""
    frames: list[Frame] = []
    for above, line in itertools.pairwise(lines):
        at = _AT.match(line)
        if at and not LIBRARY.search(at[1]):
            frames.append(Frame(at[1], int(at[2]), int(at[3]), re.sub(r"^\s*\d+: ", "", above).strip()))
    return tuple(frames)
