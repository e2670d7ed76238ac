"""Agents' runs assembled under layout policies: the calls that each policy makes of the same log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deeproot.bench.cachesim.call import Call
from deeproot.bench.compaction import append, budget_of
from deeproot.runtime.context.anti_patterns import (
    ChangingProfile,
    HistoryAsText,
    ShuffledTools,
    TimestampAtZero,
)
from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.calls import calls_of, spell_call
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.layers import gentle_layers
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.context.working_set import GENERATION_PROMPT, Context, WorkingSet

SHARE = 0.5
"""A budget's high water mark: the fixed part of a run and this share of all its other tokens."""
_WHOLE_CALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """A policy, made for a run's budget and number; `strategy`: with a compactor of that strategy before each append."""

    name: str
    policy: Callable[[Budget, int], LayoutPolicy]
    strategy: str | None = None


def layouts() -> list[Layout]:
    """What is compared, the plain log first."""
    return [
        Layout("append-only log", lambda budget, run: AppendOnly()),
        Layout("timestamp at index 0", lambda budget, run: TimestampAtZero(AppendOnly())),
        Layout("tools shuffled", lambda budget, run: ShuffledTools(AppendOnly(), seed=run)),
        Layout("profile changes each turn", lambda budget, run: ChangingProfile(AppendOnly())),
        Layout("history as text", lambda budget, run: HistoryAsText(AppendOnly())),
        Layout("sliding window", lambda budget, run: SlidingWindow(budget.high_tokens)),
        Layout("three zones", lambda budget, run: ThreeZones(budget)),
        Layout("three zones, no reminder", lambda budget, run: ThreeZones(budget, reminder_tokens=0)),
        Layout("three zones + summary", lambda budget, run: ThreeZones(budget, reminder_tokens=0), "joint"),
        Layout(
            "three zones + checkpoint",
            lambda budget, run: ThreeZones(budget, reminder_tokens=0),
            "checkpoint",
        ),
    ]


@dataclass(slots=True)
class Staged:
    """The calls of one or more runs under one layout. `over`: calls whose working set could not be made to fit."""

    calls: list[Call] = field(default_factory=list)
    over: int = 0


def stage(
    layout: Layout,
    runs: Sequence[EventLog],
    tokens: SegmentTokenizer,
    template: ChatTemplate,
    budget: int | None = None,
) -> Staged:
    """Every call of every run, in the order of their times.

    budget: tokens of one call (None: by `SHARE` of each run's own length).
    """
    made = Staged()
    for i, run in enumerate(runs):
        own = Budget(budget) if budget is not None else budget_of(run, SHARE, tokens, template)
        _Run(layout, layout.policy(own, i), own, tokens, template, f"run {i}", made).go(run)
    made.calls.sort(key=lambda call: call.time_s)
    return made


class _Run:
    """One run, gone through as its agent did."""

    def __init__(
        self,
        layout: Layout,
        policy: LayoutPolicy,
        budget: Budget,
        tokens: SegmentTokenizer,
        template: ChatTemplate,
        session: str,
        made: Staged,
    ) -> None:
        self._working_set = WorkingSet(policy=policy, tokenizer=tokens, template=template)
        self._compactor = None
        if layout.strategy is not None:
            self._compactor = Compactor(
                self._working_set,
                budget=budget,
                strategy=strategies()[layout.strategy],
                layers=gentle_layers(),
                keep_turns=2,
            )
        self._tokens = tokens
        self._session, self._made = session, made
        self._asked: tuple[Context, Event, str] | None = None
        """The call before, the event that answers it, and the answer's text."""

    def go(self, run: EventLog) -> None:
        with EventLog.memory(clock=lambda: 0) as log:
            for event in run.read():
                if event.kind is EventKind.ASSISTANT:
                    self._ask(log, run, event)
                new = NewEvent(
                    event.kind, run.payload(event), event.data, event.call_id, event.exit_code, event.time_ns
                )
                if self._compactor is None:
                    log.extend([new])
                else:
                    append(self._compactor, log, new)
        self._finish(None)

    def _ask(self, log: EventLog, run: EventLog, event: Event) -> None:
        try:
            context = self._working_set.assemble(log)
        except BudgetError:
            self._made.over += 1
            self._finish(None)
            return
        self._finish(context)
        spelled = [spell_call(call, _WHOLE_CALL) for call in calls_of(event).values()]
        self._asked = (context, event, "\n".join([run.text(event), *spelled]))

    def _finish(self, after: Context | None) -> None:
        """Turn the call before into a `Call`, now that it is known how its answer comes back."""
        if self._asked is None:
            return
        context, event, text = self._asked
        self._asked = None
        answer = _continued(context.token_ids, after) if after is not None else None
        if answer is None:
            answer = self._tokens.encode(text, model_written=True)
        ends = [b.end for b in context.boundaries if b.key != GENERATION_PROMPT]
        self._made.calls.append(
            Call(
                self._session,
                event.time_ns / 1e9,
                context.token_ids,
                answer,
                tuple(ends),
                _marks(context, ends),
            )
        )


def _continued(prompt: TokenIds, after: Context) -> TokenIds | None:
    """What the next prompt has behind this one, up to the end of that part: the answer as it came back."""
    if after.token_ids.size <= prompt.size or not (after.token_ids[: prompt.size] == prompt).all():
        return None
    end = next(b.end for b in after.boundaries if b.end > prompt.size)
    return after.token_ids[prompt.size : end]


def _marks(context: Context, ends: Sequence[int]) -> tuple[int, ...]:
    """Breakpoints behind the first part, the root, the trunk, and the newest part that comes from the log.

    Not behind the reminder and the status line, which move on each turn: a prefix that ends in them never comes again.
    """
    from_log = [b.end for b in context.boundaries if b.key[:1] == "e" and b.key[1:].isdigit()]
    zones = [
        max((b.end for b in context.boundaries if b.zone is zone and b.end in ends), default=0)
        for zone in (Zone.ROOT, Zone.TRUNK)
    ]
    newest = max(from_log, default=ends[-1])
    return tuple(sorted({ends[0], newest, *(end for end in zones if end)}))
