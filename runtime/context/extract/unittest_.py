"""Python's unittest."""

import re
from collections.abc import Sequence

from deeproot.runtime.context.extract.base import Diagnostic, Parsed
from deeproot.runtime.context.extract.traceback import diagnostic, last_traceback

_HEAD = re.compile(r"(FAIL|ERROR|UNEXPECTED SUCCESS): (\w+) \(([\w.]+)\)(?: ([\[(].*))?$")


class UnittestExtractor:
    """Failures, errors, failing sub-tests and unexpected successes."""

    name = "unittest"

    def suits(self, text: str) -> bool:
        """unittest's rulers and its count stand in it."""
        return "=" * 70 in text and ("\nRan " in text or "Traceback" in text)

    def parse(self, lines: Sequence[str]) -> Parsed:
        """Read a whole run."""
        found: list[Diagnostic] = []
        summary: list[str] = []
        for i, line in enumerate(lines):
            if (match := _HEAD.match(line)) and i and lines[i - 1].startswith("=" * 20):
                found.append(self._case(match, lines, i))
            elif re.match(r"Ran \d+ tests? in |FAILED \(", line):
                summary.append(line)
        return Parsed(tuple(found), tuple(summary))

    def _case(self, match: re.Match[str], lines: Sequence[str], i: int) -> Diagnostic:
        fixture = match[2] in ("setUpClass", "tearDownClass", "setUpModule", "tearDownModule")
        dotted = match[3] if fixture or match[3].endswith(match[2]) else f"{match[3]}.{match[2]}"
        said = f"{match[1]}: {match[2]} ({match[3]}){f' {match[4]}' if match[4] else ''}"
        end = next((k for k in range(i + 1, len(lines)) if lines[k].startswith("=" * 20)), len(lines))
        end = next((k for k in range(i + 1, end) if re.match(r"Ran \d+ tests? in ", lines[k])), end)
        rule = next((k for k in range(i + 1, end) if lines[k].startswith("-" * 20)), i)
        tb, causes = last_traceback(lines, rule + 1, end)
        if tb is not None:
            return diagnostic(tb, self.name, "failed", dotted, i + 1, [*causes, said])
        return Diagnostic(self.name, match[1].lower(), "failed", dotted, detail=(said,), at=i + 1)
