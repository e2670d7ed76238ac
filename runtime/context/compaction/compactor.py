"""Keeps a working set under its high water mark: one batch down to the low one, planned, audited, swapped in whole."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.chat_model import ChatModel
from deeproot.runtime.context.compaction.audit import faults
from deeproot.runtime.context.compaction.breaker import Breaker, Verdict
from deeproot.runtime.context.compaction.draft import Draft
from deeproot.runtime.context.compaction.escrow import Escrow
from deeproot.runtime.context.compaction.layers import Layer, default_layers
from deeproot.runtime.context.compaction.strategies import JOINT
from deeproot.runtime.context.compaction.strategy import Strategy, Tools, Unit
from deeproot.runtime.context.compaction.summarise import Summariser
from deeproot.runtime.context.cost_oracle import CostOracle, EditCost
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, payload_text
from deeproot.runtime.context.grouping import root_items
from deeproot.runtime.context.items import Item, no_note
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.context.working_set import WorkingSet


class Status(StrEnum):
    """What came of a look at the water marks."""

    FITS = "fits"
    """Below the high mark: nothing was done."""
    COMPACTED = "compacted"
    USELESS = "useless"
    """Less than a tenth could be freed."""
    OPEN = "breaker open"
    """Not tried, since the last three were useless."""
    OVERTAKEN = "overtaken"
    """Another compaction was swapped in meanwhile; this one was thrown away."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`before` and `after`: tokens of the prompt, with what is to come. `layers`: what was done, in order.

    `swapped`: whether the prompt has changed. `message`: one sentence for a person. `cost`: of the next call, where the
    compactor was given an oracle and the prompt has changed.
    """

    status: Status
    before: int
    after: int
    message: str
    layers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    swapped: bool = False
    cost: EditCost | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of the log last used."""

    log: EventLog
    breaker: Breaker
    escrow: Escrow


class Compactor:
    """Compacts the log of a working set. What it decides is in the log, so that any working set of that log shows it.

    `budget`: usable tokens of one call, or a `Budget` with its marks; not more than the policy's own. `model`: for
    strategies that ask one (None: the deterministic extractor). `keep_turns`: newest turns that are never summarised.
    `episode_turns`: the most turns of one episode. `oracle`: prices what is swapped in. For one event loop.
    """

    def __init__(
        self,
        working_set: WorkingSet,
        *,
        budget: int | Budget,
        strategy: Strategy = JOINT,
        model: ChatModel | None = None,
        layers: Sequence[Layer] | None = None,
        keep_turns: int = 3,
        episode_turns: int = 8,
        oracle: CostOracle | None = None,
    ) -> None:
        self.budget = budget if isinstance(budget, Budget) else Budget(budget)
        self.strategy = strategy
        self._working_set = working_set
        self._model = model
        self._layers = default_layers() if layers is None else tuple(layers)
        self._keep = keep_turns
        self._episode_turns = episode_turns
        self._oracle = oracle
        self._lock = asyncio.Lock()
        self._known: _Known | None = None

    async def extend(self, log: EventLog, new: Sequence[NewEvent]) -> tuple[list[Event], Outcome]:
        """Make room for events, then append them; and look once more, since what they were taken for is an estimate."""
        outcome = await self.make_room(log, self.tokens_of(new))
        events = log.extend(new)
        after = await self.make_room(log)
        return events, outcome if after.status is Status.FITS else after

    def tokens_of(self, new: Sequence[NewEvent]) -> int:
        """About how many tokens events will have once they are staged; not less than they will, filters aside."""
        total = 0
        for event in new:
            text = event.payload if isinstance(event.payload, str) else payload_text(event.payload)
            fields = (event.data or {}).get("message")
            total += self._working_set.tokens_of_message(text, json.dumps(fields) if fields else "")
        return total

    async def make_room(self, log: EventLog, incoming: int = 0) -> Outcome:
        """Look at the marks before `incoming` tokens are appended, and compact if they would reach the high one.

        Raises `BudgetError` at once if policy, tools, constraints and task reach the high mark by themselves.
        """
        if incoming < 0:
            raise ValueError(f"incoming is {incoming}; give the tokens that are to be appended")
        async with self._lock:
            draft = self._draft(log, incoming)
            before = draft.size + incoming
            if before < self.budget.high_tokens:
                return Outcome(
                    Status.FITS, before, before, f"{before} tokens, below {self.budget.high_tokens}"
                )
            breaker = self._of(log).breaker
            why = breaker.why_open(draft.compactable(), self.budget.total)
            if why is not None:
                return Outcome(Status.OPEN, before, before, why)
            old = self._token_ids(log)
            outcome = await self._compact(draft, before, incoming)
            if self._oracle is None or old is None or not outcome.swapped:
                return outcome
            new = self._token_ids(log)
            return outcome if new is None else replace(outcome, cost=self._oracle.price(old, new))

    def _token_ids(self, log: EventLog) -> TokenIds | None:
        """The prompt as it is; None if nobody wants its price, or if it does not fit."""
        if self._oracle is None:
            return None
        try:
            return self._working_set.assemble(log).token_ids
        except BudgetError:
            return None

    def compactions(self, log: EventLog) -> int:
        """How many useful compactions the log has seen."""
        return self._of(log).breaker.compactions

    def _draft(self, log: EventLog, incoming: int) -> Draft:
        staged = self._working_set.staged(log)
        items = staged.applied().items
        # A note of open diagnostics takes what room there is: counted, it would eat what a compaction frees.
        context = replace(self._working_set.plan_context(staged, items), open_note=no_note)
        fixed = context.fixed + sum(item.tokens for item in root_items(items))
        self.budget.check_fixed(fixed)

        # What the layout itself would leave out counts, so that it is summarised first; unless nothing ever is.
        counts_drops = self.strategy.unit is not Unit.NOTHING

        def size_of(shown: Sequence[Item]) -> int:
            plan = self._working_set.policy.plan(shown, context)
            placed = sum(placement.item.tokens for placement in plan.placements)
            return context.fixed + placed + (sum(drop.tokens for drop in plan.drops) if counts_drops else 0)

        target = max(fixed, self.budget.low_tokens - incoming)
        limit = max(fixed, self.budget.high_tokens - incoming)
        escrow = self._of(log).escrow
        return Draft(staged, context, size_of, escrow, keep_turns=self._keep, target=target, limit=limit)

    def _of(self, log: EventLog) -> "_Known":
        if self._known is None or self._known.log is not log:
            self._known = _Known(log, Breaker(), Escrow())
        self._known.breaker.read(log)
        return self._known

    async def _compact(self, draft: Draft, before: int, incoming: int) -> Outcome:
        items, compactable = draft.applied.items, draft.compactable()
        known = len(draft.staged.stand_ins())
        done = [layer.name for layer in self._layers if not draft.done and layer.apply(draft)]
        notes: list[str] = []
        if not draft.done:
            tools = Tools(draft.staged.log, draft.context.count, self._model)
            summariser = Summariser(self.strategy, tools, draft, self._episode_turns)
            done += await summariser.run()
            notes += summariser.notes
        wrong = faults(items, draft)
        after = before if wrong else draft.size + incoming
        verdict = Verdict(before, after, compactable, self.strategy.name, tuple(done), (*notes, *wrong))
        draft.staged.read()
        if len(draft.staged.stand_ins()) != known:
            return Outcome(Status.OVERTAKEN, before, before, "another compaction was swapped in meanwhile")
        return self._swap(draft, verdict, bool(wrong))

    def _swap(self, draft: Draft, verdict: Verdict, wrong: bool) -> Outcome:
        """Old or new, never between: stand-ins and verdict are one transaction of the log.

        A compaction that frees little would cost the cache for nothing, and is only taken if the prompt would not fit.
        """
        needed = verdict.before > self.budget.total and draft.size < verdict.before
        swapped = not wrong and (verdict.useful or needed) and bool(draft.made)
        events = [stand_in.to_event() for stand_in in draft.made] if swapped else []
        draft.staged.log.extend([*events, verdict.to_event()])
        freed = verdict.before - verdict.after
        if verdict.useful:
            message = f"{verdict.before} -> {verdict.after} tokens by {', '.join(verdict.layers)}"
            status = Status.COMPACTED
        else:
            pinned = verdict.before - verdict.compactable
            message = (
                f"only {freed} of {verdict.before} tokens could be freed: {pinned} are instructions, users' words,"
                f" anchors or the newest turns, for a high mark of {self.budget.high_tokens}"
            )
            status = Status.USELESS
        after = verdict.after if swapped else verdict.before
        return Outcome(status, verdict.before, after, message, verdict.layers, verdict.notes, swapped)
