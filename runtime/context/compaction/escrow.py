"""Open diagnostics: errors that no later run has shown to be gone. They outlive every compaction, verbatim."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deeproot.runtime.context.compaction.turns import Call
from deeproot.runtime.context.extract.extract import extract, failing_lines, worth_extracting
from deeproot.runtime.context.retention import facts

_QUIET = re.compile(
    r"-[qvsx]+|--(?:tb|color|quiet|verbose|no-header)\b.*|[|&;]+|\d?>.*|2>&1|head|tail|-?\d+|-n\d*|-c\d*"
)
"""Words of a command that do not narrow what is run."""
_FAILED = re.compile(
    r"^\s*(?:\{\s*\"error\"|error\b|fatal\b|panic\b|traceback \(most recent|\S*(?:Error|Exception)\b:|E\d{3} |- E\d{3} |ERRORS:)",
    re.IGNORECASE | re.MULTILINE,
)
"""What a failing line of a tool begins with where the exit code is not known."""
_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
MORE = "more failing lines in the archive]"
_ENDED = re.compile(r"fatal|panic|abort|segmentation|out of memory|killed|traceback|exception", re.IGNORECASE)
MOST_LINES = 40
_FEWEST_LINES = 4
"""Below that many, a diagnostic has no room for both its ends."""
_SHORT_TITLE = 40
"""Characters."""


@dataclass(frozen=True, slots=True)
class OpenDiagnostic:
    """`text`: the failing lines or records of one result, verbatim. `seq`: the result's event."""

    seq: int
    title: str
    """The call that failed."""
    text: str


@dataclass(slots=True)
class _Run:
    """What the newest run of one command left open."""

    found: OpenDiagnostic
    program: str
    words: frozenset[str]
    structured: bool
    """Whether a known tool's format was read, so that what was run can be compared."""


class Escrow:
    """Follows the calls of a log in order and knows what is open.

    An open diagnostic is closed by: the same command run again, whatever came out (what came out is then what counts);
    a run of the same program that passed and was narrowed no further (each of its words stands in the failed command);
    for errors of no known format, a later success of the same program or tool.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Run] = {}
        self._diagnosed: dict[int, tuple[OpenDiagnostic | None, bool]] = {}

    def follow(self, calls: Sequence[Call]) -> None:
        """Take the calls of the log, in order; those that were followed before are not read again."""
        self._open = {}
        for call in calls:
            if call.result is not None:
                self._take(call)

    def open(self) -> list[OpenDiagnostic]:
        """What is open now, oldest first."""
        return sorted((run.found for run in self._open.values()), key=lambda found: found.seq)

    def _take(self, call: Call) -> None:
        key = call.title()
        program, words = _words(call)
        if call.seq not in self._diagnosed:
            self._diagnosed[call.seq] = diagnose(call)
        found, structured = self._diagnosed[call.seq]
        self._open.pop(key, None)
        if found is not None:
            self._open[key] = _Run(found, program, words, structured)
            return
        if _only_shows(call):
            return
        for other, run in list(self._open.items()):
            if run.program == program and (words <= run.words or not run.structured):
                del self._open[other]


def diagnose(call: Call) -> tuple[OpenDiagnostic | None, bool]:
    """What failed in a call's result, verbatim, and whether that was read in a known tool's format.

    None if nothing failed, or if the result only shows a text that was asked for.
    """
    text = call.result or ""
    if _only_shows(call):
        return None, False
    code = (
        None if call.shell and _PIPE.search(call.command) else call.exit_code
    )  # a pipe's is that of its last part
    structured = any(d.severity != "warning" for d in extract(text).diagnostics)
    if code == 0 or (code is None and not structured and not _FAILED.search(text)):
        return None, False
    return OpenDiagnostic(call.seq, call.title(), _failing(text, code)), structured or bool(facts(text))


def _only_shows(call: Call) -> bool:
    """Whether a command was asked for a text, which may quote errors, and not to run something."""
    last = re.split(r"&&|\|\||;|\n", call.command.strip())[-1]
    return call.shell and not worth_extracting(_PIPE.split(last)[0])


def _failing(text: str, exit_code: int | None) -> str:
    """The failing lines; where none is known as such, the last lines, which is where programs say why they end."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    failing = sorted({*failing_lines(lines), *(i for i, line in enumerate(lines) if _FAILED.match(line))})
    kept = [lines[i] for i in failing] or [line for line in lines if line.strip()][-5:]
    return "\n".join(_abridged(list(dict.fromkeys(kept)), MOST_LINES)) or f"exit code {exit_code}, no output"


def abridged(found: OpenDiagnostic, most: int) -> OpenDiagnostic:
    """The same in about `most` lines: the first, the last, those that ended the run, a count of the others. Below four
    lines, only the last that ended the run, and the beginning of the call."""
    lines = found.text.split("\n")
    left = int(lines.pop()[1:].split()[0]) if lines[-1].endswith(MORE) else 0
    title = found.title if most >= _FEWEST_LINES else found.title[:_SHORT_TITLE]
    return replace(found, title=title, text="\n".join(_abridged(lines, most, left)))


def _abridged(lines: list[str], most: int, left: int = 0) -> list[str]:
    """`left`: how many are left out already."""
    if len(lines) > most:
        quarter = max(1, most // 4)
        fatal = [i for i, line in enumerate(lines) if _ENDED.search(line)]
        fatal = fatal or [i for i, line in enumerate(lines) if _FAILED.match(line)]
        every = range(len(lines))
        chosen = sorted({*every[: 2 * quarter], *every[-quarter:], *fatal[-quarter:]})
        if most < _FEWEST_LINES:
            chosen = fatal[-1:] or [0]
        left += len(lines) - len(chosen)
        lines = [lines[i] for i in chosen]
    return [*lines, f"[{left} {MORE}"] if left else lines


def _words(call: Call) -> tuple[str, frozenset[str]]:
    """The program, and the words that say what it is run on."""
    if not call.shell:
        return call.name, frozenset([call.command])
    last = re.split(r"&&|\|\||;", call.command.split("\n")[0])[-1]
    try:
        words = shlex.split(last)
    except ValueError:
        words = last.split()
    words = [word for word in words if not _QUIET.fullmatch(word)]
    while words and ("=" in words[0] or words[0] in ("sudo", "time", "env")):
        words = words[1:]
    if len(words) > 2 and words[0].startswith("python") and words[1] == "-m":
        words = words[2:]
    return (words[0] if words else ""), frozenset(words)


def unsaid(words: str, shown: str) -> list[str]:
    """Lines of a diagnostic's words that stand nowhere in a text. Both as a prompt has them."""
    lines = [line.strip() for line in words.split("\n") if not line.endswith(MORE)]
    return [line for line in lines if line and line not in shown]


def escrow_text(found: Sequence[OpenDiagnostic]) -> str:
    """Open diagnostics as stand-ins show them; empty if there are none."""
    parts = [f"#{d.seq} {d.title}\n{d.text}" for d in found]
    return "\n".join(["Open, verbatim:", *parts]) if parts else ""
