"""One failing test of a pytest run: the part under its title, in any style of traceback."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, dedent
from deeproot.runtime.context.extract.traceback import diagnostic as of_traceback
from deeproot.runtime.context.extract.traceback import frame_line, last_traceback

PLACE = re.compile(r"(\S+\.py):(\d+):(?: in (\S+)| (\S.*))?\s*$")
_CAPTURED = re.compile(r"-+ (Captured .+?) -+$")
_LOCAL = re.compile(r"([A-Za-z_]\w*)\s*= (.*)$")
_ARGUMENT = re.compile(r", (?=[A-Za-z_]\w* = )")
_EXCEPTION = re.compile(r"((?:[a-z_]\w*\.)*[A-Z]\w*)(?:: |$)")
_CHAIN = re.compile(r"(?:The above exception was the direct cause|During handling of the above exception)")


@dataclass(slots=True)
class _Trace:
    """What was read of one exception's traceback."""

    frames: list[Frame] = field(default_factory=list)
    expressions: list[str | None] = field(default_factory=list)
    variables: list[list[tuple[str, str]]] = field(default_factory=list)
    message: list[str] = field(default_factory=list)
    kind: str | None = None

    def own(self) -> list[int]:
        """Indices of frames that are no library's."""
        return [k for k, f in enumerate(self.frames) if not LIBRARY.search(f.file)]

    def nearest(self) -> int:
        """Index of the innermost own frame; of the innermost where there is none."""
        own = self.own()
        return own[-1] if own else len(self.frames) - 1

    def code(self) -> str | None:
        """The exception's class, with its module where the message says it."""
        said = class_of(self.message[0]) if self.message else None
        code = self.kind if self.kind and re.fullmatch(r"[\w.]+", self.kind) else said
        return said if said and code and said.rsplit(".", 1)[-1] == code else code


def class_of(text: str) -> str | None:
    """The exception's class at the start of a message; a bare assertion has none written."""
    match = _EXCEPTION.match(text)
    return match[1] if match else ("AssertionError" if text.startswith("assert ") else None)


def read_section(body: Sequence[str], target: str, offset: int) -> Diagnostic:
    """One failing test. `offset`: index of the section's first line in the output."""
    body, detail = _split_captured(body)
    if any(line.startswith("Traceback (most recent call last)") for line in body):
        tb, causes = last_traceback(body, 0, len(body))
        if tb is not None:
            return of_traceback(tb, "pytest", "failed", target, offset + 1, [*causes, *detail])
    links = [i for i, line in enumerate(body) if _CHAIN.match(line)]
    parts = [body[a + 1 : b] for a, b in zip([-1, *links], [*links, len(body)], strict=True)]
    causes = [line for part in parts[:-1] for line in _cause(_read(part))]
    trace = _read(parts[-1])
    if not trace.message:
        trace.message = _without_exception(body)
    return _record(target, trace, [*causes, *detail], offset)


def _read(body: Sequence[str]) -> _Trace:
    trace = _Trace()
    expression: str | None = None
    values: list[tuple[str, str]] = []
    short = False
    for i, line in enumerate(body):
        if match := PLACE.match(line):
            # In the short style the source line follows its place, in the long style it comes before.
            short = match[3] is not None
            trace.frames.append(
                Frame(match[1], int(match[2]), None, match[3] if match[3] != "<module>" else None)
            )
            after = body[i + 1].strip() if short and i + 1 < len(body) else None
            trace.expressions.append(after if short else expression)
            trace.variables.append(values)
            trace.kind = match[4] or trace.kind
            expression, values = None, []
        elif line.startswith("_ _ _"):
            short = False
        elif line.startswith("E  "):
            trace.message.append(line[1:])
        elif line.startswith(">"):
            expression = line[1:].strip()
        elif match := _LOCAL.match(line):
            # Arguments stand on one line above the source, locals on a line each below it.
            parts = _ARGUMENT.split(line) if expression is None else [line]
            values += [(m[1], m[2]) for part in parts if (m := _LOCAL.match(part))]
        elif short and line.startswith("        ") and (match := _LOCAL.match(line.strip())):
            trace.variables[-1].append((match[1], match[2]))
    trace.message = dedent(trace.message)
    return trace


def _cause(trace: _Trace) -> list[str]:
    """The exception that led to the one reported."""
    lines = [f"caused by {text}" if i == 0 else text for i, text in enumerate(trace.message)]
    return lines + [frame_line(trace.frames[k]) for k in reversed(trace.own())]


def _without_exception(body: Sequence[str]) -> list[str]:
    """Sections without `E` lines: a strict xfail's note, an unexpected success, a doctest's expected and got."""
    start = next((i for i, line in enumerate(body) if line.startswith("Expected")), None)
    if start is not None:
        return [line for line in body[start:] if line.strip() and not PLACE.match(line)]
    noted = [line.strip() for line in body if line.startswith("[")]
    return noted or [b.strip() for b in body if b.strip()][-1:] or ["failed"]


def _record(target: str, trace: _Trace, detail: list[str], offset: int) -> Diagnostic:
    k = trace.nearest()
    here = trace.frames[k] if trace.frames else None
    callers = [trace.frames[n] for n in reversed(trace.own()) if n < k]
    if here is not None and here.function:
        callers.insert(0, here)
    return Diagnostic(
        "pytest",
        "\n".join(trace.message),
        "failed",
        target,
        here.file if here else None,
        here.line if here else None,
        code=trace.code(),
        expression=trace.expressions[k] if here else None,
        locals=tuple(dict(trace.variables[k]).items()) if here else (),
        frames=tuple(callers),
        detail=tuple(detail),
        at=offset + 1,
    )


def _split_captured(body: Sequence[str]) -> tuple[list[str], list[str]]:
    """The traceback part, and what the test printed, each stream under its name."""
    at = next((i for i, line in enumerate(body) if _CAPTURED.match(line)), len(body))
    detail = []
    for line in body[at:]:
        match = _CAPTURED.match(line)
        detail.append(f"{match[1]}:" if match else line)
    return list(body[:at]), [d for d in detail if d.strip()]
