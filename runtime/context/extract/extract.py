"""From a tool's output to the records and the short text that stand for it."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.context.extract.base import Diagnostic, Extractor, Parsed, render, strip_blank
from deeproot.runtime.context.extract.build import BuildExtractor
from deeproot.runtime.context.extract.gcc import GccExtractor
from deeproot.runtime.context.extract.golang import GoExtractor
from deeproot.runtime.context.extract.java import JavaExtractor, JvmExtractor
from deeproot.runtime.context.extract.jstests import (
    JestExtractor,
    NodeExtractor,
    ThrownExtractor,
    VitestExtractor,
)
from deeproot.runtime.context.extract.linters import (
    EslintExtractor,
    MypyExtractor,
    RuffExtractor,
    TscExtractor,
)
from deeproot.runtime.context.extract.native import load, parse_native, strings
from deeproot.runtime.context.extract.pytest_ import PytestExtractor
from deeproot.runtime.context.extract.rust import RustExtractor
from deeproot.runtime.context.extract.traceback import TracebackExtractor
from deeproot.runtime.context.extract.unittest_ import UnittestExtractor
from deeproot.runtime.context.retention import facts, lost

_LONGEST = 4_000
_FAILURE = re.compile(
    r"FAIL|ERROR|\bError\b|\berror\b|[Pp]anic|Traceback|[Ff]atal|FATAL|[Aa]ssert|Exception|\bwarning: "
)

_SHOWING = frozenset(
    [
        "cat",
        "head",
        "tail",
        "sed",
        "awk",
        "nl",
        "less",
        "more",
        "bat",
        "grep",
        "egrep",
        "rg",
        "ag",
        "ack",
        "find",
        "ls",
        "tree",
        "wc",
        "echo",
        "printf",
        "file",
        "stat",
        "du",
        "df",
        "env",
    ]
)
_SHOWING_GIT = [["git", verb] for verb in ("diff", "log", "show", "blame", "grep", "status", "ls-files")]

# An error that ended a program: what the program printed before it is the observation, not noise around it.
_PROGRAMS = {"python", "javascript", "jvm"}
_RUNNERS = {"pytest", "unittest", "jest", "vitest", "node", "java"}


@dataclass(frozen=True, slots=True)
class Extraction:
    """What is left of an output."""

    text: str
    diagnostics: tuple[Diagnostic, ...]
    tools: tuple[str, ...]
    """Formats that were found, and "fallback" where head, failures and tail stand for the output."""
    omitted: int
    """Lines of the output that neither stand in the text nor in a record."""
    repaired: int
    """Lines put back verbatim since the records alone would have lost a fact."""


def worth_extracting(command: str) -> bool:
    """Whether a command's output is about building, testing or running, and not text that it was asked to show.

    False where the last command of a line searches, lists or prints files, or shows what version control holds:
    such output may quote diagnostics, but is none.
    """
    last = re.split(r"&&|\|\||;|\n|\|", command.strip())[-1].split()
    words = list(itertools.dropwhile(lambda word: "=" in word or word in ("sudo", "time", "env"), last))
    return not words or not (words[0] in _SHOWING or words[:2] in _SHOWING_GIT)


def default_extractors() -> tuple[Extractor, ...]:
    """All formats, those that claim most of an output first."""
    return (
        PytestExtractor(), UnittestExtractor(), JestExtractor(), VitestExtractor(), NodeExtractor(), GoExtractor(),
        RustExtractor(), JavaExtractor(), TscExtractor(), EslintExtractor(), MypyExtractor(), RuffExtractor(),
        GccExtractor(), BuildExtractor(), TracebackExtractor(), ThrownExtractor(), JvmExtractor(),
    )  # fmt: skip


def extract(
    text: str, extractors: Sequence[Extractor] | None = None, *, head: int = 25, tail: int = 25
) -> Extraction:
    """Read a tool's output, resolved as a terminal shows it (see `filters.terminal`).

    Records where a format is known; else the first `head` lines, every failing line and the last `tail` ones. An
    output of at most head + tail lines is left as it is then, and so is one that its records would not shorten.
    An error that ended a program has its record, but head and tail stay too. The result holds V(O) of the output:
    what a parser missed is put back verbatim and counted in `repaired`. Never raises on any text.
    """
    document = load(text)
    if document is not None and (parsed := parse_native(document)) is not None:
        return _assemble("\n".join(strings(document)), text.split("\n"), parsed, ("native",))
    lines = text.split("\n")
    parsed, tools = _parse(text, lines, default_extractors() if extractors is None else extractors)
    if parsed.diagnostics and not set(tools) <= _PROGRAMS:
        return _assemble(text, lines, parsed, tools)
    return _fallback(text, lines, parsed, tools, head, tail)


def _parse(
    text: str, lines: Sequence[str], extractors: Sequence[Extractor]
) -> tuple[Parsed, tuple[str, ...]]:
    """All formats that stand in the output; a line that one of them claimed starts no second record."""
    # A page of data on one line is no diagnostic, and would cost the patterns their time.
    short = [line if len(line) <= _LONGEST else line[:_LONGEST] for line in lines]
    found: list[Diagnostic] = []
    summary: list[str] = []
    tools: list[str] = []
    for extractor in extractors:
        if not extractor.suits(text) or (extractor.name in _PROGRAMS and _RUNNERS & set(tools)):
            continue
        parsed = extractor.parse(short)
        taken = {d.at for d in found}
        places = {(d.file, d.line, d.column, d.message) for d in found}
        fresh = [
            d
            for d in parsed.diagnostics
            if d.at not in taken and (d.file, d.line, d.column, d.message) not in places
        ]
        if fresh:
            found += fresh
            summary += [s for s in parsed.summary if s not in summary]
            tools.append(extractor.name)
    return Parsed(tuple(sorted(found, key=lambda d: d.at)), tuple(summary)), tuple(tools)


def _assemble(view: str, lines: Sequence[str], parsed: Parsed, tools: tuple[str, ...]) -> Extraction:
    """Records as text, then what the check finds missing, then the outcome.

    `view`: what the check reads, which for JSON and XML are the strings in it.
    """
    body = list(dict.fromkeys(render(d) for d in parsed.diagnostics))
    back = list(dict.fromkeys(f.line.rstrip() for f in lost(view, "\n".join([*body, *parsed.summary]))))
    if back:
        body += ["also:", *back]
    kept = "\n".join([*body, *parsed.summary])
    omitted = max(len(strip_blank(lines)) - kept.count("\n") - 1, 0)
    kept += f"\n{_omitted(omitted)}" if omitted else ""
    whole = "\n".join(lines)
    if len(kept) >= len(whole) or lost(view, kept):
        return Extraction(whole, parsed.diagnostics, tools, 0, 0)
    return Extraction(kept, parsed.diagnostics, tools, omitted, len(back))


def _fallback(
    text: str, lines: Sequence[str], parsed: Parsed, tools: tuple[str, ...], head: int, tail: int
) -> Extraction:
    if len(lines) <= head + tail:
        return Extraction(text, parsed.diagnostics, tools, 0, 0)
    keep = set(range(head)) | set(range(len(lines) - tail, len(lines))) | set(failing_lines(lines))
    out: list[str] = []
    gap = 0
    for i, line in enumerate(lines):
        if i in keep:
            if gap:
                out.append(_omitted(gap))
                gap = 0
            out.append(line)
        else:
            gap += 1
    return Extraction("\n".join(out), parsed.diagnostics, (*tools, "fallback"), len(lines) - len(keep), 0)


def failing_lines(lines: Sequence[str]) -> list[int]:
    """Which lines (from 0) tell of a failure, with the line before each and the indented frames under it."""
    wanted = {f.line for f in facts("\n".join(lines))}
    found: set[int] = set()
    for i, line in enumerate(lines):
        if _FAILURE.search(line) or line.strip(" \t│|") in wanted:
            found |= {i, *_frame_around(lines, i)}
    return sorted(found)


def _omitted(lines: int) -> str:
    return f"[{lines} line{'s' * (lines > 1)} omitted]"


def _frame_around(lines: Sequence[str], i: int) -> range:
    """The line before a failing one, and the indented lines under it, which are its frames."""
    end = i + 1
    while end < len(lines) and end <= i + 20 and lines[end][:1] in (" ", "\t") and lines[end].strip():
        end += 1
    return range(max(i - 1, 0), end)
