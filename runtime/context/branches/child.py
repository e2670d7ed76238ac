"""Sub-agents: a child has a log of its own, so that what it reads never enters its parent's prompt."""

from collections.abc import Collection

from deeproot.runtime.context.calls import calls_of
from deeproot.runtime.context.event_log import EventLog, EventLogError, NewEvent
from deeproot.runtime.context.events import Event, EventKind

PART = "briefing"
"""Of the event that tells a forked child what to do."""
BRANCH = "branch"
"""Of the event that says where a child comes from."""
_ROOT = ("policy", "constraint", "tools")
_BRIEFING = (
    "From here on you work on a branch, as a sub-agent: nobody sees what you do, only your last message. Task: {task}\n"
    "When you are done, answer without calling a tool: a report of at most {words} words, with what you found and where"
    " (paths, lines), and what you did not look at."
)
_WORDS = 200


def fork(
    parent: EventLog, task: str, *, into: EventLog | None = None, upto: int | None = None, words: int = _WORDS
) -> EventLog:
    """A child that begins with all that its parent knows up to event `upto` (None: as far as every call is answered).

    Its prompts begin with its parent's, byte for byte and token for token, so that the parent's cache serves both. `into`:
    an empty log (None: in memory). `words`: of the report that it is asked for. Raises `EventLogError` if a call is open at
    `upto` or `into` has events.
    """
    closed = _closed(parent)
    last = max(closed) if upto is None else upto
    if last not in closed:
        raise EventLogError(f"a call is open at event {last}; branch off where every call has its result")
    copied = [_copy(parent, event) for event in parent.read(1, last + 1)]
    briefing = {"role": "user", "part": PART, "anchor": True}
    told = NewEvent(EventKind.INSTRUCTION, _BRIEFING.format(task=task, words=words), briefing)
    return _filled(into, [*copied, _branch(last, "fork"), told])


def alone(parent: EventLog, task: str, *, into: EventLog | None = None, words: int = _WORDS) -> EventLog:
    """A child that knows its parent's policy, constraints and tools, and besides nothing but `task`, which must say all
    that is needed. Only its root begins as its parent's does. See `fork` for the rest."""
    copied = [
        _copy(parent, event)
        for event in parent.read()
        if event.kind is EventKind.INSTRUCTION and _part_of(event) in _ROOT
    ]
    told = NewEvent(EventKind.INSTRUCTION, _BRIEFING.format(task=task, words=words), {"role": "user"})
    return _filled(into, [*copied, _branch(len(parent), "alone"), told])


def is_child(log: EventLog) -> bool:
    """Whether a log is a sub-agent's: its host should give it no tool for further ones without a bound."""
    return own_from(log) > 1


def own_from(log: EventLog) -> int:
    """The first event that a child made itself; 1 in a log that is nobody's child."""
    return max((event.seq for event in log.read() if event.data.get("part") == BRANCH), default=0) + 1


def _part_of(event: Event) -> str:
    role = str(event.data.get("role", "user"))
    return str(event.data.get("part", "policy" if role in ("system", "developer") else "task"))


def _branch(upto: int, how: str) -> NewEvent:
    return NewEvent(EventKind.STATE_CHANGE, "", {"part": BRANCH, "how": how, "upto": upto})


def _copy(log: EventLog, event: Event) -> NewEvent:
    return NewEvent(event.kind, log.payload(event), event.data, event.call_id, event.exit_code, event.time_ns)


def _filled(into: EventLog | None, events: list[NewEvent]) -> EventLog:
    child = EventLog.memory() if into is None else into
    if len(child):
        raise EventLogError(f"the child's log has {len(child)} events; give an empty one")
    child.extend(events)
    return child


def _closed(log: EventLog) -> Collection[int]:
    """Events after which no call waits for its result."""
    waiting: set[str] = set()
    closed = {0}
    for event in log.read():
        if event.kind is EventKind.ASSISTANT:
            waiting.update(calls_of(event))
        elif event.kind is EventKind.TOOL_RESULT:
            waiting.discard(event.call_id or "")
        if not waiting:
            closed.add(event.seq)
    return closed
