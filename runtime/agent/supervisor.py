"""Makes the calls of one reply: each as soon as it may, recorded before and after, and what it read or wrote noted."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from deeproot.runtime.agent import file_tools
from deeproot.runtime.agent.arguments import (
    READERS,
    Arguments,
    BadCallError,
    Patch,
    Read,
    Run,
    Search,
    Write,
    parse,
)
from deeproot.runtime.agent.file_tools import Change
from deeproot.runtime.agent.jail import Jail, JailError, display
from deeproot.runtime.agent.outcome import Outcome, outcome_of
from deeproot.runtime.agent.running import Running
from deeproot.runtime.agent.searching import search
from deeproot.runtime.agent.stream import Call
from deeproot.runtime.agent.turn_log import Message, Progress, ended_events, started_event
from deeproot.runtime.agent.uncancelled import uncancelled
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event
from deeproot.runtime.context.invalidation.entities import ABSENT
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Invalidator

UNKNOWN = (
    "[the agent was stopped while this command ran: whether and how far it ran is not known. Look at what there is before"
    " you run it again.]"
)


class CallWatcher(Protocol):
    """Told when calls start and end."""

    def call_started(self, call: Call) -> None: ...

    def call_ended(self, call: Call, outcome: Outcome) -> None: ...


class Supervisor:
    """Makes calls in a workspace. Readers run beside each other; a call with side effects waits for all before it, and
    those after it wait for it. Use from one event loop, in the log's thread."""

    def __init__(
        self,
        log: EventLog,
        known: Invalidator,
        jail: Jail,
        running: Running | None,
        tools: tuple[str, ...],
        watcher: CallWatcher,
        host_tools: tuple[str, ...] = (),
    ) -> None:
        """`running` None: `run` is not among `tools`. `host_tools`: calls of these are answered elsewhere."""
        self._log = log
        self._known = known
        self._jail = jail
        self._running = running
        self._tools = tools
        self._watcher = watcher
        self._host_tools = host_tools

    def batch(self, turn: int, before: Progress | None = None) -> "Batch":
        """The calls of message number `turn`. `before`: what a log already says of them."""
        return Batch(self, turn, before or Progress())

    async def make(self, batch: "Batch", call: Call, message: Message) -> Outcome:
        """One call, from its arguments to its outcome; whatever goes wrong is its outcome."""
        try:
            return await self._make(batch, call, message)
        except (BadCallError, JailError) as error:
            return Outcome(f"error: {error}", 1)
        except Exception as error:  # A tool's fault must not end the run.
            return Outcome(f"error: {call.name} failed: {type(error).__name__}: {error}", 1)

    async def _make(self, batch: "Batch", call: Call, message: Message) -> Outcome:
        if call.id in batch.before.ended:
            return outcome_of(self._log, batch.before.ended[call.id])
        if call.name in self._host_tools:
            return Outcome("")  # answered from the log, when it is their turn there
        arguments = parse(call, self._tools)
        match arguments:
            case Read():
                return await asyncio.to_thread(file_tools.read, self._jail, arguments)
            case Search():
                return await search(self._jail, arguments)
        begun = batch.before.started.get(call.id)
        change = None if begun is None else begun.data.get("change")
        if begun is not None:
            found = self._after_crash(begun, change)
            if found is not None:
                return self._ended(batch, call, found)
        prepared = self._prepare(batch, arguments)
        if isinstance(prepared, Outcome):
            return prepared
        if begun is None:
            # What was read before must not be read again once this has changed it.
            earlier = [
                event for made, outcome in batch.unrecorded(call) for event in ended_events(made, outcome)
            ]
            self._log.extend([*earlier, started_event(batch.turn, call, message, _facts(prepared))])
        outcome = await self._effect(batch, arguments, prepared)
        batch.wrote.update(outcome.wrote)
        return self._ended(batch, call, outcome)

    def _ended(self, batch: "Batch", call: Call, outcome: Outcome) -> Outcome:
        self._log.extend(ended_events(call, outcome))
        batch.recorded(call)
        return outcome

    def _prepare(self, batch: "Batch", arguments: Arguments) -> Change | Outcome | None:
        """What is to be done to a file; an outcome if it must not be."""
        match arguments:
            case Write():
                change = file_tools.prepare_write(self._jail, arguments)
            case Patch():
                change = file_tools.prepare_patch(self._jail, arguments)
            case _:
                return None
        return self._refusal(batch, change) or change

    async def _effect(self, batch: "Batch", arguments: Arguments, change: Change | None) -> Outcome:
        if change is not None:
            return (await uncancelled(asyncio.to_thread(file_tools.commit, self._jail, change)))[0]
        assert isinstance(arguments, Run)
        assert self._running is not None
        return await self._running.run(arguments)

    def _refusal(self, batch: "Batch", change: Change) -> Outcome | None:
        """Why a file must not be changed by who does not know what is in it."""
        if change.before == ABSENT:
            return None
        real = self._jail.absolute(self._jail.real(change.path))
        if batch.wrote.get(real) == change.before:
            return None
        seen = self._known.showing(real)
        if not seen:
            if not change.shows:
                return None  # that a passage stands in the file only once was checked
            return Outcome(
                f"error: {change.path} exists, and you have not read it: read it first", 1, needs=(real,)
            )
        findings = {finding.seq: finding for finding in self._known.check(seen)}
        newest = findings.get(seen[-1])
        if newest is None or newest.state is not State.STALE or all(c.by is not None for c in newest.causes):
            return None
        return Outcome(
            f"error: {change.path} is not as event {seen[-1]} showed it: somebody else changed it since. Look at what it"
            " is now, and make the change anew.",
            1,
            needs=(real,),
        )

    def _after_crash(self, begun: Event, change: Mapping[str, Any] | None) -> Outcome | None:
        """What became of a call that was begun and not ended; None: nothing, so it can be made now."""
        if change is None:
            return Outcome(UNKNOWN, None)
        path = str(change["path"])
        now = file_tools.identity(self._jail, path)
        if now == change["after"]:
            return file_tools.done(self._jail, path, now, str(change["said"]), shows=bool(change["shows"]))
        if now == change["before"]:
            return None
        return Outcome(
            f"error: the agent was stopped while it changed {path}, and somebody else has changed it since: look at it",
            1,
            needs=(self._jail.absolute(self._jail.real(path)),),
        )

    def watched(self, call: Call, outcome: Outcome | None) -> None:
        if outcome is None:
            self._watcher.call_started(call)
        else:
            self._watcher.call_ended(call, outcome)

    def named(self, path: str) -> str:
        """A path as the model knows it."""
        return display(path, self._jail.root)


class Batch:
    """The calls of one reply, in its order; a context, at whose end nothing runs any more. `before`: what the log says of them already. `wrote`: BLAKE3 of the files
    that they changed, by absolute path."""

    def __init__(self, supervisor: Supervisor, turn: int, before: Progress) -> None:
        self.turn = turn
        self.before = before
        self.wrote: dict[str, str] = {}
        self._supervisor = supervisor
        self._calls: list[Call] = []
        self._tasks: list[asyncio.Task[Outcome]] = []
        self._recorded = set(before.ended)

    @property
    def has_effects(self) -> bool:
        """Whether a call may have changed something."""
        return any(call.name not in READERS for call in self._calls)

    def start(self, call: Call, message: Message) -> None:
        """Make a call as soon as those before it allow. `message`: what the reply said up to here, this call included."""
        reader = call.name in READERS
        effects = [
            task for task, made in zip(self._tasks, self._calls, strict=True) if made.name not in READERS
        ]
        first = effects[-1:] if reader else list(self._tasks)
        self._calls.append(call)
        self._tasks.append(asyncio.create_task(self._make(call, message, first)))

    def recorded(self, call: Call) -> None:
        """The log has its outcome."""
        self._recorded.add(call.id)

    def unrecorded(self, upto: Call) -> list[tuple[Call, Outcome]]:
        """Outcomes of calls before that one which the log does not have; each is told once."""
        found = []
        for call, task in zip(self._calls, self._tasks, strict=True):
            if call is upto:
                break
            if call.id not in self._recorded:
                self._recorded.add(call.id)
                found.append((call, task.result()))
        return found

    async def finish(self) -> list[tuple[Call, Outcome]]:
        """Every call's outcome, in order."""
        outcomes = [await asyncio.shield(task) for task in self._tasks]
        return list(zip(self._calls, outcomes, strict=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what still runs; what was begun is recorded as far as it came."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _make(self, call: Call, message: Message, first: list[asyncio.Task[Outcome]]) -> Outcome:
        if first:
            await asyncio.wait(first)
        self._supervisor.watched(call, None)
        outcome = await self._supervisor.make(self, call, message)
        self._supervisor.watched(call, outcome)
        return outcome


def _facts(change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "path": change.path,
        "before": change.before,
        "after": change.after,
        "said": change.said,
        "shows": change.shows,
    }
