"""Time sense: how much time is left, whether a wall is real, whether a call took as long as it should.

Raw times change nothing about what models do. So each reading here comes with what to do about it, and `MANUAL`, which
stands in the root, says how they are to be read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from deeproot.runtime.context.status.environment import spell_seconds
from deeproot.runtime.context.status.history import MadeCall
from deeproot.runtime.context.status.reading import Reading

MANUAL = """\
How to read the lines on time in <agent_status>. What stands behind "->" is what to do now.
- time budget (urgency): match your effort to what is left. Much left: do not stop early; verify, test the edges, improve. \
Little left: finish what is open and deliver. None left: deliver what you have and say what is missing.
- wall (persistence): a real wall does not move: gone, forbidden, no such command. Never try it again; take another way. \
A passing one does (timeout, busy, too many requests): wait, and try again, three times at most.
- nothing found (persistence): one empty search proves nothing. Say that there is nothing only after three different ways.
- slow, suspiciously quick (vigilance): a call that took far longer or shorter than usual is a sign. Find out why before \
you build on its result."""
_REAL = re.compile(
    r"\b(?:410 gone|404|403 forbidden|401 unauthorized|permission denied|access denied|operation not permitted"
    r"|command not found|no such file or directory|no module named|modulenotfounderror|unknown option|no such host)\b",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"\b(?:timed? ?out|timeout|connection refused|connection reset|429|too many requests|rate limit\w*|502|503|504"
    r"|temporarily unavailable|resource busy|database is locked)\b",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"^\W*(?:(?:no|0) (?:results?|matches|match|hits|files?|entries)\b.*|nothing found.*|not found.*|\[\]|\{\})?\W*$", re.IGNORECASE)  # fmt: skip
_TRIES = 3
_OFF = 5.0
"""Times longer or shorter than usual that are worth a line."""
_SLOW_S = 1.0


@dataclass(frozen=True, slots=True)
class TimeSense:
    """`budget_s`: seconds that the task may take (None: no limit is known). `expected_s`: seconds that a tool's call takes,
    until three of them were seen. `searches`: tools whose empty result means that nothing was found."""

    budget_s: float | None = None
    expected_s: Mapping[str, float] = field(default_factory=dict)
    searches: frozenset[str] = frozenset()

    def readings(self, calls: Sequence[MadeCall], now_ns: int, first_ns: int | None) -> list[Reading]:
        """What is worth saying now. `first_ns`: when the task began."""
        own = [call for call in calls if call.spelled]
        found = [self._urgency(now_ns, first_ns), self._persistence(own), self._vigilance(own)]
        return [reading for reading in found if reading is not None]

    def _urgency(self, now_ns: int, first_ns: int | None) -> Reading | None:
        if self.budget_s is None or first_ns is None:
            return None
        left = self.budget_s - (now_ns - first_ns) / 1e9
        told = f"{spell_seconds(max(0.0, left))} of {spell_seconds(self.budget_s)} left"
        if left <= 0:
            rule = "deliver what you have now and say what is missing"
        elif left < 0.2 * self.budget_s:
            rule = "deliver the best you have; begin nothing new"
        elif left < 0.5 * self.budget_s:
            rule = "finish what is open, verify once, deliver"
        else:
            rule = "there is time: verify and improve before you stop"
        return Reading("time budget", told, rule)

    def _persistence(self, calls: Sequence[MadeCall]) -> Reading | None:
        if not calls:
            return None
        last = calls[-1]
        if last.failed:
            return _wall(last, _same_failures(calls))
        if last.name in self.searches and _NOTHING.match(last.output):
            ways = _ways(calls, last.name)
            if ways < _TRIES:
                rule = (
                    f"try other words or places, {_TRIES} ways at least, before you say that there is nothing"
                )
            else:
                rule = "that was tried in enough ways: say what was searched, and go on"
            return Reading(
                "nothing found", f"{ways} {'way' if ways == 1 else 'ways'} tried with {last.name}", rule
            )
        return None

    def _vigilance(self, calls: Sequence[MadeCall]) -> Reading | None:
        if not calls or calls[-1].seconds is None:
            return None
        last = calls[-1]
        taken = last.seconds or 0.0
        earlier = [c.seconds for c in calls[:-1] if c.name == last.name and c.seconds is not None]
        usual = median(earlier) if len(earlier) >= _TRIES else self.expected_s.get(last.name)
        if usual is None:
            return None
        told = f"{last.name} took {spell_seconds(taken)}, usually {spell_seconds(usual)}"
        if taken >= _SLOW_S and taken > _OFF * usual:
            return Reading("slow", told, "find out why before you call it again")
        if not last.failed and not last.output.strip() and usual > _OFF * taken:
            return Reading("suspiciously quick", f"{told}, and gave nothing", "check that it did anything")
        return None


def _wall(last: MadeCall, tries: int) -> Reading | None:
    """What a failed call says of going on that way."""
    times = f"tried {tries} {'time' if tries == 1 else 'times'}"
    if found := _REAL.search(last.output):
        return Reading("wall", f"{found[0]}, {times}", "real: do not try this again, take another way")
    if found := _PASSING.search(last.output):
        rule = (
            "may pass: wait, then try again"
            if tries < _TRIES
            else "enough tries: take another way, or say that it is down"
        )
        return Reading("wall", f"{found[0]}, {times}", rule)
    if tries > 1:
        return Reading("wall", f"the same call failed, {times}", "change something before you try again")
    return None


def _same_failures(calls: Sequence[MadeCall]) -> int:
    """How often the newest call was made with the same words and failed, since it last passed."""
    last, tries = calls[-1], 0
    for call in reversed(calls):
        if call.spelled == last.spelled:
            if not call.failed:
                break
            tries += 1
    return tries


def _ways(calls: Sequence[MadeCall], name: str) -> int:
    """How many different calls of a tool in a row found nothing."""
    ways: set[str] = set()
    for call in reversed([call for call in calls if call.name == name]):
        if not _NOTHING.match(call.output):
            break
        ways.add(call.spelled)
    return len(ways)
