"""pytest, in its long, short, line and native styles."""

import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import Diagnostic, Parsed
from deeproot.runtime.context.extract.pytest_section import PLACE, class_of, read_section

_TITLE = re.compile(r"_{3,} (.+?) _{3,}$")
_BAR = re.compile(r"=+ (.+?) =+$")
# Atomic, so that a long line of near misses is not tried from each of its colons.
_ID = r"((?>\S+?\.py(?![\w/.-]))(?:::(?>(?:[^\s\[]|\[.*?\](?=$| ))+))?)"
_SHORT_SUMMARY = re.compile(rf"(?:SUBFAILED(?P<sub>\S*)|FAILED|ERROR) {_ID}(?: - (.*))?$")
_PROGRESS = re.compile(rf"{_ID} (?:FAILED|ERROR)\b|\[gw\d+\] \[ *\d+%\] (?:FAILED|ERROR) {_ID}")
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
                name = f"{match[2]} {match['sub']}" if match["sub"] else match[2]
                ids.setdefault(name, (i + 1, match[3] or ""))
            elif match := _PROGRESS.match(line):
                ids.setdefault(match[1] or match[2], (i + 1, ""))
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
        by_title: dict[str, list[str]] = {}
        for node_id in ids:
            for title in {node_id, _title_of(node_id)}:
                by_title.setdefault(title, []).append(node_id)
        for k, (title, start, _) in enumerate(sections):
            end = sections[k + 1][1] - 1 if k + 1 < len(sections) else len(lines)
            end = next((i for i in range(start, end) if _BAR.match(lines[i])), end)
            if not title:
                found += _line_style(lines[start:end], start)
                continue
            target = _node_id(title, lines[start:end], by_title)
            found.append(read_section(lines[start:end], target, start))
        return found


def _node_id(title: str, body: Sequence[str], by_title: dict[str, list[str]]) -> str:
    """The node id of the summary that a section's title stands for, taken from the list; else the title itself."""
    name = re.sub(r"^(?:ERROR (?:at (?:setup|teardown) of|collecting) |\[doctest\] )", "", title)
    fits = by_title.get(name, [])
    if not fits:
        return name
    text = "\n".join(body)
    chosen = next((n for n in fits if n.split("::")[0] in text), fits[0])
    if len(fits) > 1:  # a test can fail and then err in its teardown, under one id
        fits.remove(chosen)
    return chosen


def _title_of(node_id: str) -> str:
    """How a section's title spells a node id: dots between classes, parameters as they are."""
    path, _, parameters = node_id.partition("[")
    return path.split("::", 1)[-1].replace("::", ".") + ("[" + parameters if parameters else "")


def _line_style(body: Sequence[str], offset: int) -> list[Diagnostic]:
    """`--tb=line`: one place a failure, the assertion's lines before it, no titles."""
    found: list[Diagnostic] = []
    pending: list[str] = []
    for i, line in enumerate(body):
        match = PLACE.match(line)
        if match and match[4]:
            message, place = "\n".join(pending) or match[4], (match[1], int(match[2]))
            code = class_of(match[4])
            found.append(Diagnostic("pytest", message, "failed", None, *place, code=code, at=offset + i + 1))
            pending = []
        elif line.startswith("E   "):
            pending = [line[4:]]
        elif pending and line.strip():
            pending.append(line.removeprefix("    "))
    return found
