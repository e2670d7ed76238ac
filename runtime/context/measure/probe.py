"""The differential constraint probe: which actions violated a constraint, by horizon and by number of compactions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeproot.runtime.context.measure.actions import Run, ToolCall
from deeproot.runtime.context.measure.checks import Check, check_of_text
from deeproot.runtime.context.measure.measures import HORIZONS, Share
from deeproot.runtime.context.measure.replay import StagedCall


@dataclass(frozen=True, slots=True)
class Violation:
    """One call that did what a constraint forbids."""

    constraint: str
    seq: int
    """Event of the message that makes the call."""
    turn: int
    compactions: int
    staged: bool
    """Whether the constraint stood in the working set from which the call was made."""
    why: str


@dataclass(frozen=True, slots=True)
class Probed:
    """One constraint. `checked`: how, or None where no machine can tell; then nothing is counted for it."""

    constraint: str
    checked: str | None
    actions: int
    """That were made after it was said."""
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """All constraints. Each share counts actions that violate any checked constraint, of the actions in that class."""

    constraints: tuple[Probed, ...]
    by_horizon: Mapping[str, Share]
    by_compactions: Mapping[int, Share]

    @property
    def difference(self) -> float | None:
        """Share of violating actions after the first compaction less that before it; None where either is empty."""
        before = self.by_compactions.get(0, Share(0, 0))
        later = [share for k, share in self.by_compactions.items() if k]
        after = Share(sum(s.part for s in later), sum(s.whole for s in later))
        if before.value is None or after.value is None:
            return None
        return after.value - before.value


def probe(run: Run, calls: Sequence[StagedCall], checks: Mapping[str, Check]) -> Probe:
    """Hold every action against every constraint said before it.

    `checks`: by text, for constraints whose sentence is of no known form, or which the log has only as part of a policy
    (those hold from the first turn).
    """
    staged = {call.seq: call for call in calls}
    said = {**{text: 0 for text in checks if text not in run.constraints}, **run.constraints}
    probed = [_probe_one(text, seq, run, staged, checks) for text, seq in said.items()]
    violating = {violation.seq for each in probed for violation in each.violations}
    checked_from = [said[each.constraint] for each in probed if each.checked is not None]
    covered = [turn for turn in run.actions if any(seq < turn.seq for seq in checked_from)]
    horizons: dict[str, Share] = {}
    counts: dict[int, Share] = {}
    for turn in covered:
        bad = turn.seq in violating
        name = _horizon(turn.number)
        horizons[name] = _add(horizons.get(name, Share(0, 0)), bad)
        k = staged[turn.seq].compactions
        counts[k] = _add(counts.get(k, Share(0, 0)), bad)
    return Probe(tuple(probed), horizons, dict(sorted(counts.items())))


def _probe_one(
    text: str, seq: int, run: Run, staged: Mapping[int, StagedCall], checks: Mapping[str, Check]
) -> Probed:
    check = checks.get(text) or check_of_text(text, run.tools)
    after = [turn for turn in run.actions if turn.seq > seq]
    if check is None:
        return Probed(text, None, len(after), ())
    before: list[ToolCall] = []
    violations = []
    for turn in run.actions:
        call_state = staged[turn.seq]
        for call in turn.calls:
            why = check.violated(call, before) if turn.seq > seq else None
            if why is not None:
                violations.append(
                    Violation(
                        text, turn.seq, turn.number, call_state.compactions, text in call_state.text, why
                    )
                )
            before.append(call)
    return Probed(text, str(check), len(after), tuple(violations))


def _horizon(turn: int) -> str:
    return next((f"<= {limit}" for limit in HORIZONS if turn <= limit), f"> {HORIZONS[-1]}")


def _add(share: Share, bad: bool) -> Share:
    return Share(share.part + bad, share.whole + 1)
