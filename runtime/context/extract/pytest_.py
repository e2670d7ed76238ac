"""pytest, in its long, short, line and native styles."""

import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import LIBRARY, Diagnostic, Frame, Parsed, dedent
from deeproot.runtime.context.extract.traceback import diagnostic as of_traceback
from deeproot.runtime.context.extract.traceback import read_traceback

_TITLE = re.compile(r"_{3,} (.+?) _{3,}$")
_BAR = re.compile(r"=+ (.+?) =+$")
_ID = r"(\S+?\.py(?:::(?:[^\s\[]|\[.*?\](?=$| ))+)?)"
_SHORT_SUMMARY = re.compile(rf"(?:FAILED|ERROR) {_ID}(?: - (.*))?$")
_PROGRESS = re.compile(rf"{_ID} (?:FAILED|ERROR)\b")
_PLACE = re.compile(r"(\S+\.py):(\d+):(?: in (\S+)| (\S.*))?\s*$")
_CAPTURED = re.compile(r"-+ (Captured .+?) -+$")
_LOCAL = re.compile(r"([A-Za-z_]\w*)\s*= (.*)$")
_ARGUMENT = re.compile(r", (?=[A-Za-z_]\w* = )")
_EXCEPTION = re.compile(r"((?:[a-z_]\w*\.)*[A-Z]\w*)(?:: |$)")
_WARNING = re.compile(r"\s+(\S+\.py):(\d+): (\w*Warning): (.*)$")
_OUTCOME = re.compile(
    r"=*\s*\d+ (?:failed|passed|errors?|skipped|deselected|warnings?).* in [\d.]+s.*$|!+ .+ !+$"
)


class PytestExtractor:
    """Failing tests and errors: innermost own frame, failing line, message, callers, locals, captured output."""

    name = "pytest"

    def suits(self, text: str) -> bool:
        """pytest's bars stand in it."""
        return "test session starts" in text or "short test summary info" in text or "= FAILURES =" in text

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a whole run."""
        ids: dict[str, tuple[int, str]] = {}
        summary: list[str] = []
        warnings: list[Diagnostic] = []
        sections: list[tuple[str, int, int]] = []
        part, title = "", None
        for i, line in enumerate(lines):
            if (match := _TITLE.match(line)) and part in ("FAILURES", "ERRORS"):
                title = match[1]
                sections.append((title, i + 1, len(lines)))
            elif match := _BAR.match(line):
                part = match[1]
                if part in ("FAILURES", "ERRORS"):
                    sections.append(("", i + 1, len(lines)))
            if (match := _SHORT_SUMMARY.match(line)) and "summary" in part:
                ids.setdefault(match[1], (i + 1, match[2] or ""))
            elif match := _PROGRESS.match(line):
                ids.setdefault(match[1], (i + 1, ""))
            elif (match := _WARNING.match(line)) and part == "warnings summary":
                text = f"{match[3]}: {match[4]}"
                warnings.append(
                    Diagnostic(
                        self.name, text, "warning", None, match[1], int(match[2]), code=match[3], at=i + 1
                    )
                )
            if _OUTCOME.match(line):
                summary.append(line.strip("= !"))
        found = self._sections(lines, sections, ids)
        told = {d.target for d in found}
        found += [
            Diagnostic(self.name, message or "failed", "failed", name, at=at)
            for name, (at, message) in ids.items()
            if name not in told
        ]
        return Parsed(tuple(found + warnings), tuple(summary))

    def _sections(
        self, lines: Sequence[str], sections: list[tuple[str, int, int]], ids: dict[str, tuple[int, str]]
    ) -> list[Diagnostic]:
        found: list[Diagnostic] = []
        left = list(ids)
        for k, (title, start, _) in enumerate(sections):
            end = sections[k + 1][1] - 1 if k + 1 < len(sections) else len(lines)
            end = next((i for i in range(start, end) if _BAR.match(lines[i])), end)
            if not title:
                found += _line_style(lines[start:end], start)
                continue
            target = _node_id(title, lines[start:end], left)
            if target in left:
                left.remove(target)
            found.append(read_section(lines[start:end], target, start))
        return found


def _node_id(title: str, body: Sequence[str], left: list[str]) -> str:
    """The node id of the summary that a section's title stands for; the title itself where there is none."""
    name = re.sub(r"^ERROR (?:at (?:setup|teardown) of|collecting) ", "", title)
    fits = [n for n in left if n == name or ("::" in n and n.split("::", 1)[1].replace("::", ".") == name)]
    text = "\n".join(body)
    return next((n for n in fits if n.split("::")[0] in text), fits[0] if fits else name)


def _line_style(body: Sequence[str], offset: int) -> list[Diagnostic]:
    """`--tb=line`: one place a failure, the assertion's lines before it, no titles."""
    found: list[Diagnostic] = []
    pending: list[str] = []
    for i, line in enumerate(body):
        match = _PLACE.match(line)
        if match and match[4]:
            message = "\n".join(pending) or match[4]
            found.append(
                Diagnostic(
                    "pytest",
                    message,
                    "failed",
                    None,
                    match[1],
                    int(match[2]),
                    code=_class_of(match[4]),
                    at=offset + i + 1,
                )
            )
            pending = []
        elif line.startswith("E   "):
            pending = [line[4:]]
        elif pending and line.strip():
            pending.append(line.removeprefix("    "))
    return found


def _class_of(text: str) -> str | None:
    match = _EXCEPTION.match(text)
    return match[1] if match else ("AssertionError" if text.startswith("assert ") else None)


def read_section(body: Sequence[str], target: str, offset: int) -> Diagnostic:
    """One failing test. `offset`: index of the section's first line in the output."""
    body, detail = _split_captured(body)
    for i, line in enumerate(body):
        if (
            line.startswith("Traceback (most recent call last)")
            and (tb := read_traceback(body, i))
            and tb.exception
        ):
            return of_traceback(tb, "pytest", "failed", target, offset + i + 1, detail)
    frames: list[Frame] = []
    exprs: list[str | None] = []
    variables: list[list[tuple[str, str]]] = []
    message: list[str] = []
    kind: str | None = None
    expr: str | None = None
    values: list[tuple[str, str]] = []
    for i, line in enumerate(body):
        if match := _PLACE.match(line):
            # In the short style the source line follows its place, in the long style it comes before.
            short = match[3] is not None
            frames.append(Frame(match[1], int(match[2]), None, match[3] if match[3] != "<module>" else None))
            after = body[i + 1].strip() if short and i + 1 < len(body) else None
            exprs.append(after if short else expr)
            variables.append(values)
            kind = match[4] or kind
            expr, values = None, []
        elif line.startswith("E  "):
            message.append(line[1:])
        elif line.startswith(">"):
            expr = line[1:].strip()
        elif match := _LOCAL.match(line):
            # Arguments stand on one line above the source, locals on a line each below it.
            parts = _ARGUMENT.split(line) if expr is None else [line]
            values += [(m[1], m[2]) for part in parts if (m := _LOCAL.match(part))]
        elif (match := _LOCAL.match(line.strip())) and line.startswith("        ") and frames:
            variables[-1].append((match[1], match[2]))
    if not message:
        message = (
            [line.strip() for line in body if line.startswith("[")]
            or [b.strip() for b in body if b.strip()][-1:]
            or ["failed"]
        )
    return _assemble(target, frames, exprs, variables, dedent(message), kind, detail, offset)


def _assemble(
    target: str,
    frames: list[Frame],
    exprs: list[str | None],
    variables: list[list[tuple[str, str]]],
    message: list[str],
    kind: str | None,
    detail: list[str],
    offset: int,
) -> Diagnostic:
    own = [k for k, f in enumerate(frames) if not LIBRARY.search(f.file)]
    k = own[-1] if own else len(frames) - 1
    code = kind if kind and re.fullmatch(r"[\w.]+", kind) else _class_of(message[0])
    if code and (match := _EXCEPTION.match(message[0])) and match[1].rsplit(".", 1)[-1] == code:
        code = match[1]
    callers = [f for n, f in enumerate(frames) if n < k and n in own][::-1]
    if frames and frames[k].function:
        callers.insert(0, frames[k])
    return Diagnostic(
        "pytest",
        "\n".join(message),
        "failed",
        target,
        frames[k].file if frames else None,
        frames[k].line if frames else None,
        code=code,
        expression=exprs[k] if frames else None,
        locals=tuple(dict(variables[k]).items()) if frames else (),
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
