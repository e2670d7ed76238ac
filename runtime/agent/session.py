"""The loop: stage what the model is to see, ask it, make its calls, record what came of them; from a log, to its end."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from deeproot.runtime.agent.arguments import sendable
from deeproot.runtime.agent.host_tools import HostTools
from deeproot.runtime.agent.outcome import Outcome, outcome_of, reading_of
from deeproot.runtime.agent.repeats import repeated
from deeproot.runtime.agent.stream import BrokenReplyError, Call, End, ModelError, Server, Text, Usage
from deeproot.runtime.agent.supervisor import Batch, CallWatcher, Supervisor
from deeproot.runtime.agent.turn_log import (
    Message,
    Progress,
    end_event,
    message_events,
    notice_event,
    read_progress,
)
from deeproot.runtime.context.compaction.compactor import Compactor, Status
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.invalidation.binding_log import read_own_write
from deeproot.runtime.context.invalidation.entities import diag_entity, file_entity
from deeproot.runtime.context.invalidation.invalidator import Invalidator, Reading
from deeproot.runtime.context.invalidation.look import look
from deeproot.runtime.context.invalidation.settle import Settler
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.working_set import Context

ANSWERED, TURNS = "answered", "turns"
WAITS_S = (0.5, 2.0, 8.0)
_CUT = "[your reply was cut off behind the last call: say anew what was to follow]"
_TOO_LONG = "[your reply was cut off at its limit of tokens]"


class Watcher(CallWatcher, Protocol):
    """Told what happens, to show it."""

    def asked(self, turn: int, context: Context) -> None: ...

    def said(self, piece: Text) -> None: ...

    def replied(self, usage: Usage | None, ttft_s: float | None) -> None: ...

    def noted(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """`request`: fields of every request beside the conversation. `waits_s`: before each new try of a failed one."""

    request: Mapping[str, Any]
    max_turns: int = 50
    waits_s: Sequence[float] = WAITS_S
    most_wait_s: float = 60.0


@dataclass(slots=True)
class _Reply:
    """What came of one reply so far."""

    message: Message = field(default_factory=Message)
    usage: Usage | None = None
    reason: str = ""
    ttft_s: float | None = None


class Session:
    """One run over one log. `run` goes on from wherever the log ends."""

    def __init__(
        self,
        log: EventLog,
        *,
        known: Invalidator,
        compactor: Compactor,
        settler: Settler,
        supervisor: Supervisor,
        server: Server,
        options: Options,
        watcher: Watcher,
        host_tools: HostTools,
        status: StatusBar | None = None,
    ) -> None:
        self._log = log
        self._host_tools = host_tools
        self._status = status
        self._known = known
        self._compactor = compactor
        self._settler = settler
        self._supervisor = supervisor
        self._server = server
        self._options = options
        self._watcher = watcher

    async def run(self) -> str:
        """Go on until the model answers without a call (ANSWERED) or has had its turns (TURNS).

        Cancelling is safe at any point: what runs is stopped and recorded. Raises ModelError if there is no reply to be
        had, `BudgetError` and `TemplateError` as `WorkingSet.assemble` does.
        """
        at = read_progress(self._log)
        if at.open:
            await self._go_on(at)
        else:
            self._settle(list(at.results.values()))
        while True:
            at = read_progress(self._log)
            if at.end:
                return at.end
            if at.turns >= self._options.max_turns:
                return TURNS
            await self._turn(at)

    async def _go_on(self, at: Progress) -> None:
        """Make the calls of a message that a stop left unanswered."""
        assert at.message is not None
        turn = at.turns + 1 if at.cut else at.turns
        if at.cut:
            self._log.extend(message_events(at.message, None, None))
        async with self._supervisor.batch(turn, at) as batch:
            for call in at.message.calls:
                batch.start(call, at.message)
            await self._answer(batch, at.message, [_CUT] if at.cut else [])

    async def _turn(self, at: Progress) -> None:
        """Ask, and make the calls of the reply. One that breaks off is asked for anew, unless a call of it may have changed
        something."""
        context = await self._stage()
        self._watcher.asked(at.turns + 1, context)
        body = context.request(**self._options.request)
        for wait in (*self._options.waits_s, None):
            async with self._supervisor.batch(at.turns + 1) as batch:
                reply = _Reply()
                try:
                    await self._read(body, batch, reply, set(at.ids))
                except BrokenReplyError as error:
                    broken = error
                    if batch.has_effects:
                        self._watcher.noted(f"the reply was cut off ({error}); its calls stand")
                        return await self._take(batch, reply)
                else:
                    return await self._take(batch, reply)
            if wait is not None:
                wait = min(self._options.most_wait_s, max(wait, broken.after_s or 0.0))
                self._watcher.noted(f"{broken}; asking again in {wait:g} s")
                await asyncio.sleep(wait)
        raise ModelError(f"no reply after {len(self._options.waits_s) + 1} tries: {broken}")

    async def _take(self, batch: Batch, reply: _Reply) -> None:
        """Log a reply, and what its calls came to. One that broke off (it has no `reason`) stands as far as it came."""
        end = [] if reply.message.calls else [end_event(ANSWERED)]
        self._log.extend([*message_events(reply.message, reply.usage, reply.ttft_s), *end])
        self._watcher.replied(reply.usage, reply.ttft_s)
        if reply.message.calls:
            notices = [_CUT] if not reply.reason else [_TOO_LONG] if reply.reason == "length" else []
            await self._answer(batch, reply.message, notices)
        elif reply.reason == "length":
            self._watcher.noted("the answer was cut off at --max-tokens")

    async def _stage(self) -> Context:
        """What the model is to see next."""
        if self._status is not None:
            self._status.update()
        outcome = await self._compactor.make_room(self._log)
        if outcome.status is not Status.FITS:
            self._watcher.noted(f"compaction: {outcome.message}")
        needed, cold = self._needs()
        settled = self._settler.before_call(self._log, self._known, needed=needed, cached=0 if cold else None)
        if settled.choice is not None:
            self._watcher.noted(f"no longer so: {', '.join(f'#{seq}' for seq in settled.choice.treatments)}")
        for path in settled.refreshed:
            self._watcher.noted(f"read anew: {path}")
        return settled.context

    def _needs(self) -> tuple[set[str], bool]:
        """Files that calls of the newest message failed for, and whether the server says that it has cached nothing."""
        needed: set[str] = set()
        cached: list[int] = []
        for event in self._log.read():
            if event.kind is EventKind.ASSISTANT:
                needed = set()
            elif event.kind is EventKind.TOOL_RESULT:
                needed.update(map(str, (event.data.get("facts") or {}).get("needs", ())))
            elif event.data.get("part") == "usage" and "cached_tokens" in event.data:
                cached.append(int(event.data["cached_tokens"]))
        return needed, len(cached) > 1 and not any(cached[-2:])

    async def _read(self, body: Mapping[str, Any], batch: Batch, reply: _Reply, ids: set[str]) -> None:
        began = time.monotonic()
        async with aclosing(self._server.reply(body)) as pieces:
            async for piece in pieces:
                if reply.ttft_s is None and not isinstance(piece, End):
                    reply.ttft_s = round(time.monotonic() - began, 3)
                message = reply.message
                match piece:
                    case Text():
                        self._watcher.said(piece)
                        part = "reasoning" if piece.reasoning else "text"
                        reply.message = replace(message, **{part: getattr(message, part) + piece.text})
                    case Call():
                        call = _with_own_id(sendable(piece), ids, at_turn=batch.turn)
                        ids.add(call.id)
                        reply.message = replace(message, calls=(*message.calls, call))
                        batch.start(call, reply.message)
                    case End():
                        reply.reason, reply.usage = piece.reason, piece.usage

    async def _answer(self, batch: Batch, message: Message, notices: Sequence[str]) -> None:
        """Wait for the calls, and log their results in order."""
        made = await batch.finish()
        lines = [*repeated(self._log, message.calls), *notices]
        events = self._host_tools.events(made)
        logged, outcome = await self._compactor.extend(
            self._log, [*events, *([notice_event(lines)] if lines else [])]
        )
        if outcome.status is not Status.FITS:
            self._watcher.noted(f"compaction: {outcome.message}")
        for line in lines:
            self._watcher.noted(line.strip("[]"))
        self._settle([event for event in logged if event.kind is EventKind.TOOL_RESULT])

    def _settle(self, results: Sequence[Event]) -> None:
        """Bind results to their sources, and say what was written; what is done already is not done again."""
        told = {write[0] for event in self._log.read() if (write := read_own_write(event)) is not None}
        for event in results:
            outcome = outcome_of(self._log, event)
            if event.seq not in self._known.graph:
                self._bind(event, outcome)
            left = [
                path
                for path, identity in outcome.wrote.items()
                if look(file_entity(path)).identity == identity or not identity
            ]
            if left and event.seq not in told:
                self._known.wrote(left, event.seq)

    def _bind(self, event: Event, outcome: Outcome) -> None:
        if outcome.target:
            identity = f"{event.exit_code} {event.payload_hash}"
            target = diag_entity(outcome.target)
            self._known.replaces(target, event.seq, identity, inputs=Reading(outcome.inputs))
        elif outcome.shows or outcome.inputs:
            self._known.bind(event.seq, reading_of(outcome.shows), inputs=reading_of(outcome.inputs))


def _with_own_id(call: Call, ids: set[str], *, at_turn: int) -> Call:
    """The call under an id that no other has; servers give none, or the same ones in each reply."""
    if call.id and call.id not in ids:
        return call
    made = call.id or "call"
    number = 0
    while f"{made}_{at_turn}_{number}" in ids:
        number += 1
    return replace(call, id=f"{made}_{at_turn}_{number}")
