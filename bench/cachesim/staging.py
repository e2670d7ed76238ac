"""Agents' runs gone through under a layout: the calls that its host would make, and what they hold."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.layouts import SHARE, Layout, Skills, Status
from deeproot.bench.cachesim.worked_runs import Happening, Run
from deeproot.bench.compaction import append, budget_of
from deeproot.runtime.context import record
from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.calls import calls_of, spell_call
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.layers import gentle_layers
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.invalidation.entities import file_entity
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.invalidation.settle import Settler
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.context.working_set import GENERATION_PROMPT, Context, WorkingSet

_WHOLE_CALL = 1_000_000
_END_OF_THINKING = "</think>"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one call saw. `run`: its number; `seq`: the run's event that answers it; `stale`: texts of files in it
    that have changed since; `unmarked`: those of them of which it does not say so."""

    run: int
    seq: int
    token_ids: TokenIds
    contents: tuple[str, ...]
    stale: int
    unmarked: int


@dataclass(slots=True)
class Staged:
    """The calls of one or more runs under one layout. `over`: calls whose working set could not be made to fit."""

    calls: list[Call] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    over: int = 0


def stage(
    layout: Layout,
    runs: Sequence[Run],
    tokens: SegmentTokenizer,
    template: ChatTemplate,
    budget: int | None = None,
) -> Staged:
    """Every call of every run, in the order of their times.

    budget: tokens of one call (None: by `SHARE` of each run's own length).
    """
    made = Staged()
    for i, run in enumerate(runs):
        own = Budget(budget) if budget is not None else budget_of(run.log, SHARE, tokens, template)
        with tempfile.TemporaryDirectory(prefix="deeproot-layouts-") as folder:
            working_set = WorkingSet(
                policy=layout.policy(own, i), tokenizer=tokens, template=template, **layout.options
            )
            _Host(layout, own, working_set, tokens, Path(folder), i, made).go(run)
    made.calls.sort(key=lambda call: call.time_s)
    return made


class _Host:
    """One run, gone through as its agent's host did."""

    def __init__(
        self,
        layout: Layout,
        budget: Budget,
        working_set: WorkingSet,
        tokens: SegmentTokenizer,
        folder: Path,
        number: int,
        made: Staged,
    ) -> None:
        self._layout = layout
        self._working_set = working_set
        self._tokens = tokens
        self._folder = folder
        self._number, self._made = number, made
        self._compactor = None
        if layout.strategy is not None:
            self._compactor = Compactor(
                working_set,
                budget=budget,
                strategy=strategies()[layout.strategy],
                layers=gentle_layers(),
                keep_turns=2,
            )
        self._log = EventLog.memory(clock=lambda: 0)
        self._invalidator = Invalidator(self._log)
        self._settler = None
        if layout.treat is not None:
            self._settler = Settler(
                working_set, prices=layout.treat.prices, stakes=layout.treat.stakes, root=str(folder)
            )
        self._asked: tuple[Context, Event, str] | None = None
        """The call before, the event that answers it, and the answer's text."""

    def go(self, run: Run) -> None:
        for path, text in run.files.items():
            self._write(path, text)
        for event in run.log.read():
            happening = run.happenings.get(event.seq, Happening())
            if event.kind is EventKind.ASSISTANT:
                if happening.skill is not None:
                    self._add_skill(*happening.skill, event)
                self._ask(run, event, happening.needs)
            new = self._as_this_host_has_it(run.log, event)
            if new is not None:
                self._append(new)
                self._after(happening)
        self._finish(None)
        self._log.close()

    def _as_this_host_has_it(self, log: EventLog, event: Event) -> NewEvent | None:
        new = NewEvent(
            event.kind, log.payload(event), event.data, event.call_id, event.exit_code, event.time_ns
        )
        reading = event.kind is EventKind.STATE_CHANGE and "name" in event.data
        if reading and self._layout.status is Status.OFF:
            return None
        if reading and self._layout.status is Status.APPENDED:
            text = f"<agent_status>\n{event.data['name']}: {log.text(event)}\n</agent_status>"
            return replace(new, kind=EventKind.INSTRUCTION, payload=text.encode(), data={"role": "user"})
        if event.kind is EventKind.ASSISTANT and not self._layout.keeps_thinking:
            return replace(new, payload=log.text(event).split(_END_OF_THINKING)[-1].encode())
        if event.data.get("part") == "tools" and not self._layout.describes_tools:
            return replace(
                new, payload=json.dumps([_undescribed(t) for t in json.loads(log.text(event))]).encode()
            )
        return new

    def _append(self, new: NewEvent) -> None:
        if self._compactor is None:
            self._log.extend([new])
        else:
            append(self._compactor, self._log, new)

    def _after(self, happening: Happening) -> None:
        """Bind what the newest event shows; change what it changes."""
        if happening.shows is not None:
            reading = self._invalidator.reading([file_entity(self._folder / happening.shows)])
            self._invalidator.bind(len(self._log), reading)
        if happening.writes is not None:
            by = len(self._log)
            path = self._write(*happening.writes)
            if happening.own:
                self._invalidator.wrote([path], by)

    def _write(self, path: str, text: str) -> Path:
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def _add_skill(self, name: str, text: str, event: Event) -> None:
        if self._layout.skills is Skills.FILE:
            call = {"id": f"skill {name}", "type": "function"}
            function = {"name": "read_file", "arguments": json.dumps({"path": f"skills/{name}.md"})}
            record.assistant(self._log, "", tool_calls=[{**call, "function": function}])
            record.tool_result(self._log, call["id"], text, name="read_file", exit_code=0)
        elif self._layout.skills is Skills.SYSTEM:
            record.policy(self._log, text)
        else:
            record.user(self._log, f'<skill name="{name}">\n{text}\n</skill>')

    def _ask(self, run: Run, event: Event, needs: str | None) -> None:
        try:
            context = self._assemble(needs)
        except BudgetError:
            self._made.over += 1
            self._finish(None)
            return
        self._finish(context)
        contents = tuple(str(message.get("content") or "") for message in context.messages)
        stale, unmarked = self._stale(contents) if run.is_worked else (0, 0)
        self._made.seen.append(Seen(self._number, event.seq, context.token_ids, contents, stale, unmarked))
        spelled = [spell_call(call, _WHOLE_CALL) for call in calls_of(event).values()]
        self._asked = (context, event, "\n".join([run.log.text(event), *spelled]))

    def _assemble(self, needs: str | None) -> Context:
        if self._settler is None or self._layout.treat is None:
            return self._working_set.assemble(self._log)
        needed = [str(self._folder / needs)] if needs is not None and self._layout.treat.refresh else []
        return self._settler.before_call(self._log, self._invalidator, needed=needed).context

    def _stale(self, contents: Sequence[str]) -> tuple[int, int]:
        """Texts of files in the prompt that are no longer so, and those of them without a word about it.

        A text that was read more than once counts once.
        """
        text = "\n".join(contents)
        said: dict[str, bool] = {}
        for finding in self._invalidator.check():
            first = self._log.text(self._log.event(finding.seq)).split("\n")[0]
            if finding.state is State.STALE and first in text:
                said[first] = said.get(first, False) or f"[stale #{finding.seq}:" in text
        return len(said), sum(not told for told in said.values())

    def _finish(self, after: Context | None) -> None:
        """Turn the call before into a `Call`, now that it is known how its answer comes back."""
        if self._asked is None:
            return
        context, event, text = self._asked
        self._asked = None
        answer = None
        # Where thinking is dropped, what the model wrote is not what comes back: the cache has it as it was written.
        if after is not None and (self._layout.keeps_thinking or _END_OF_THINKING not in text):
            answer = _continued(context.token_ids, after)
        if answer is None:
            answer = self._tokens.encode(text, model_written=True)
        ends = [b.end for b in context.boundaries if b.key != GENERATION_PROMPT]
        self._made.calls.append(
            Call(
                f"run {self._number}",
                event.time_ns / 1e9,
                context.token_ids,
                answer,
                tuple(ends),
                _marks(context, ends, self._told_by_users(context)),
            )
        )

    def _told_by_users(self, context: Context) -> set[str]:
        """Keys of the parts that are user messages."""
        keys = {b.key for b in context.boundaries if b.key[:1] == "e" and b.key[1:].isdigit()}
        return {key for key in keys if self._log.event(int(key[1:])).kind is EventKind.INSTRUCTION}


def _undescribed(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {k: v for k, v in tool["function"].items() if k != "description"}}


def _continued(prompt: TokenIds, after: Context) -> TokenIds | None:
    """What the next prompt has behind this one, up to the end of that part: the answer as it came back."""
    if after.token_ids.size <= prompt.size or not (after.token_ids[: prompt.size] == prompt).all():
        return None
    end = next(b.end for b in after.boundaries if b.end > prompt.size)
    return after.token_ids[prompt.size : end]


def _marks(context: Context, ends: Sequence[int], by_users: set[str]) -> tuple[int, ...]:
    """Breakpoints behind the first part, the root, the trunk, and the newest part that comes from the log.

    Not behind the reminder and the status line, which move on each turn: a prefix that ends in them never comes again.
    Nor behind a user's message that such a part follows: the two are joined, with a separator between.
    """
    from_log = [b.end for b in context.boundaries if b.key[:1] == "e" and b.key[1:].isdigit()]
    settled = [b.end for b in context.boundaries if b.end in from_log and b.key not in by_users]
    zones = [
        max((b.end for b in context.boundaries if b.zone is zone and b.end in ends), default=0)
        for zone in (Zone.ROOT, Zone.TRUNK)
    ]
    moved = from_log and from_log[-1] != ends[-1]
    newest = max(settled if moved and settled else from_log, default=ends[-1])
    return tuple(sorted({ends[0], newest, *(end for end in zones if end)}))
