"""What the calls of a layout still held, beside what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from deeproot.bench.cachesim.staging import Seen
from deeproot.bench.cachesim.worked_runs import Run
from deeproot.runtime.context.envelope import Defence
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.measure.actions import read_run
from deeproot.runtime.context.measure.measures import Share, r_assoc, u_eff
from deeproot.runtime.context.measure.replay import Line, StagedCall
from deeproot.runtime.context.measure.words import facts_in
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.working_set import WorkingSet

_SHORTEST_RULE = 12
"""Characters of a line that counts as a rule."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Means over calls, or over runs. None: there was nothing to count.

    `rules`: of the lines of policy, constraints and the user's words that had been said, those that stood in the prompt.
    `joins`: actions that join two distant observations, and those whose prompt held both (R_assoc); `c_r`: raw tokens over staged ones at the last call; `u_eff`: staged tokens that a later action
    repeats. `stale`, `unmarked`: texts of files a call that had changed since, and those of which nothing said so.
    """

    rules: float | None
    joins: Share
    c_r: float | None
    u_eff: float | None
    stale: float
    unmarked: float

    @property
    def facts(self) -> float | None:
        """Share of the joins that were kept."""
        return self.joins.value


class Judge:
    """Reads the runs once, and looks at what each layout's calls had of them."""

    def __init__(self, runs: Sequence[Run], tokens: SegmentTokenizer, template: ChatTemplate) -> None:
        self._runs = runs
        self._tokens = tokens
        self._read = [read_run(run.log) for run in runs]
        self._rules = [_rules(run) for run in runs]
        self._template = template
        self._raw: dict[tuple[int, int], int] = {}
        self._lines: dict[str, tuple[Line, ...]] = {}

    def judge(self, seen: Sequence[Seen]) -> Fidelity:
        """Of one layout's calls."""
        ratios, used, kept, joins = [], [], [], []
        for number in range(len(self._runs)):
            of_run = [one for one in seen if one.run == number]
            if not of_run:
                continue
            calls = {one.seq: self._staged(one) for one in of_run}
            turns = [turn for turn in self._read[number].turns if turn.seq in calls]
            ratios.append(self._raw_tokens(of_run[-1]) / of_run[-1].token_ids.size)
            share = u_eff(turns, [calls[turn.seq] for turn in turns])
            used += [] if share is None else [share]
            joins.append(r_assoc([turn for turn in turns if turn.calls], calls))
            kept += [share for one in of_run if (share := self._kept(one)) is not None]
        return Fidelity(
            rules=fmean(kept) if kept else None,
            joins=Share(sum(join.part for join in joins), sum(join.whole for join in joins)),
            c_r=fmean(ratios) if ratios else None,
            u_eff=fmean(used) if used else None,
            stale=fmean(one.stale for one in seen) if seen else 0.0,
            unmarked=fmean(one.unmarked for one in seen) if seen else 0.0,
        )

    def _raw_tokens(self, one: Seen) -> int:
        """Of the whole log before a call, neither filtered nor enveloped."""
        if (one.run, one.seq) not in self._raw:
            raw = WorkingSet(
                policy=AppendOnly(),
                tokenizer=self._tokens,
                template=self._template,
                defence=Defence.NONE,
                filters=None,
                result_tokens=None,
            )
            context = raw.assemble(self._runs[one.run].log, upto=one.seq - 1)
            self._raw[one.run, one.seq] = int(context.token_ids.size)
        return self._raw[one.run, one.seq]

    def _kept(self, one: Seen) -> float | None:
        said = [line for seq, line in self._rules[one.run] if seq < one.seq]
        text = "\n".join(one.contents)
        return fmean(line in text for line in said) if said else None

    def _staged(self, one: Seen) -> StagedCall:
        lines = tuple(line for content in one.contents for line in self._lines_of(content))
        return StagedCall(one.seq, 0, 0, one.token_ids, 0, lines, "", 0)

    def _lines_of(self, content: str) -> tuple[Line, ...]:
        if content not in self._lines:
            parts = [part for part in content.split("\n") if part.strip()]
            self._lines[content] = tuple(Line(self._tokens.count(part), facts_in(part)) for part in parts)
        return self._lines[content]


def _rules(run: Run) -> list[tuple[int, str]]:
    """Event and text of each line of an instruction that says something; tool schemas are none."""
    return [
        (event.seq, line.strip())
        for event in run.log.read()
        if event.kind is EventKind.INSTRUCTION and event.data.get("part") != "tools"
        for line in run.log.text(event).split("\n")
        if len(line.strip()) >= _SHORTEST_RULE
    ]
