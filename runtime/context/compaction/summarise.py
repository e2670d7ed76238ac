"""Runs a strategy over a draft: results one by one, runs as episodes and then phases, or everything at once."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from deeproot.runtime.context.compaction.draft import Draft
from deeproot.runtime.context.compaction.episodes import episodes, loose_runs
from deeproot.runtime.context.compaction.escrow import escrow_text
from deeproot.runtime.context.compaction.layers import observations
from deeproot.runtime.context.compaction.stand_in import Level, StandIn
from deeproot.runtime.context.compaction.strategies import LAST_RESORT, Summary
from deeproot.runtime.context.compaction.strategy import Proposal, Span, Strategy, Tools, Unit
from deeproot.runtime.context.grouping import Group
from deeproot.runtime.context.items import Item

_FEWEST = 48
"""Tokens that a record is given at the least: below, the template's own headings fill it."""
_RESULT_OVER = 100
"""Shorter results are not summarised: the summary would be no shorter."""
_WORTH = 0.85
"""Share of the high mark below which the last resort is not taken."""
_SHRINK = 3
"""A summary of what was not summarised before has a third of its tokens at the most."""


class Summariser:
    """For one compaction. `notes`: what went wrong with a model's answers."""

    def __init__(self, strategy: Strategy, tools: Tools, draft: Draft, episode_turns: int) -> None:
        self._strategy = strategy
        self._tools = tools
        self._draft = draft
        self._episode_turns = max(1, episode_turns)
        self.notes: list[str] = []

    async def run(self) -> list[str]:
        """Add stand-ins to the draft until it is small enough; the names of what helped."""
        match self._strategy.unit:
            case Unit.NOTHING:
                return []
            case Unit.RESULT:
                steps = {"results": self._results}
            case Unit.RUN:
                steps = {"episodes": self._episodes, "phases": self._phases}
            case Unit.ALL:
                steps = {"all": self._all}
        steps[LAST_RESORT.name] = self._last_resort
        done = []
        for name, step in steps.items():
            if not self._draft.done and await step():
                done.append(f"{self._strategy.name}: {name}")
        return done

    async def _results(self) -> bool:
        """Every old result that is long enough, but for the newest that the strategy leaves whole."""
        keep = self._strategy.keep_results if isinstance(self._strategy, Summary) else 0
        found = [item for item in observations(self._draft) if item.tokens > _RESULT_OVER]
        made = []
        for item in found[: max(0, len(found) - keep)]:
            span = self._span([item.seq, *self._caller(item)], max(_FEWEST, item.tokens // _SHRINK))
            words = self._words(await self._propose(self._strategy, span, self._tools), [item.seq])
            body = self._draft.staged.stager.stand_in(item, f"[compressed]\n{words}", "")
            if body.tokens < item.tokens:
                made.append(StandIn(Level.SUMMARY, (item.seq,), body.text, self._strategy.name))
        return self._draft.add(made)

    async def _episodes(self) -> bool:
        """Runs of turns, oldest first, each piece of one that is no record yet."""
        helped = False
        for run in loose_runs(self._draft):
            for is_record, turns in itertools.groupby(run, self._is_record):
                for piece in episodes(list(turns), self._episode_turns) if not is_record else ():
                    if not self._draft.done:
                        helped |= await self._record(Level.EPISODE, piece, self._strategy)
        return helped

    async def _phases(self) -> bool:
        """The records of each run, and what lies between them, as one."""
        helped = False
        for run in loose_runs(self._draft):
            if not self._draft.done and len(run) > 1:
                helped |= await self._record(Level.PHASE, run, self._strategy)
        return helped

    async def _all(self) -> bool:
        return await self._record(Level.CHECKPOINT, self._draft.loose(), self._strategy)

    async def _last_resort(self) -> bool:
        """All that may go in one record by the extractor, if the prompt would soon be back at the high mark."""
        if self._draft.size <= _WORTH * self._draft.limit:
            return False
        return await self._record(Level.PHASE, self._draft.loose(), LAST_RESORT)

    async def _record(self, level: Level, groups: Sequence[Group], strategy: Strategy) -> bool:
        """One record for these turns, if that is shorter than they are."""
        covers = self._draft.covers(groups)
        if not covers:
            return False
        tokens = sum(group.tokens for group in groups)
        room = self._room(tokens)
        span = self._span(covers, min(room, tokens // _SHRINK) if level is Level.EPISODE else room, groups)
        tools = replace(self._tools, model=None) if strategy is LAST_RESORT else self._tools
        words = self._words(await self._propose(strategy, span, tools), covers)
        return self._draft.add([StandIn(level, covers, words, strategy.name)])

    def _room(self, tokens: int) -> int:
        """What a record for turns of so many tokens may have: its part of what is left below the target."""
        loose = max(1, self._draft.compactable())
        pinned = self._draft.size - loose
        share = max(0, self._draft.target - pinned) * tokens // loose
        # Where what is pinned leaves next to nothing below the low mark, a record that says something goes before it.
        most = max(0, self._draft.limit - pinned) * tokens // loose
        return max(_FEWEST, min(share, 2 * tokens // 3), min(tokens // 4, most // 2))

    def _span(self, covers: Sequence[int], room: int, groups: Sequence[Group] = ()) -> Span:
        records = self._draft.applied.records
        earlier = [records[item.key].text for group in groups for item in group.items if item.key in records]
        covered = sorted(set(covers))
        return Span(self._draft.turns(covered), self._query(), room, covered[-1], tuple(earlier))

    async def _propose(self, strategy: Strategy, span: Span, tools: Tools) -> Proposal:
        proposal = await strategy.propose(span, tools)
        self.notes += proposal.notes
        return proposal

    def _words(self, proposal: Proposal, covers: Sequence[int]) -> str:
        """The strategy's words, and behind them what is open, which no strategy may touch."""
        opened = escrow_text(self._draft.open_among(covers))
        return f"{proposal.text}\n{opened}" if opened else proposal.text

    def _query(self) -> str:
        """The task and the newest request."""
        asked = [item.text for item in self._draft.applied.items if item.part in ("task", "turn")]
        return "\n".join(dict.fromkeys([*asked[:1], *asked[-1:]]))

    def _caller(self, item: Item) -> list[int]:
        """The message that made the call whose result an item is."""
        return [
            other.seq
            for other in self._draft.applied.items
            if other.part == "assistant" and item.call_id in other.call_ids and other.seq < item.seq
        ][-1:]

    def _is_record(self, group: Group) -> bool:
        return any(item.key in self._draft.applied.records for item in group.items)
