"""Few-shot sets: examples for one kind of task, the same bytes for every task of that kind."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.context.event_log import EventLog, EventLogError, NewEvent
from deeproot.runtime.context.events import EventKind, payload_hash

PART = "demo"
MANY = 3
"""Examples of one set beyond which more of them dilute the rules."""


@dataclass(frozen=True, slots=True)
class Example:
    """What a user says, and what the model should answer."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class FewShotSet:
    """`kind`: of task, such as `bug report`. Which set a task gets follows from its kind alone, never from its words:
    examples that are searched for each request change the prompt's beginning each time."""

    kind: str
    examples: tuple[Example, ...]

    def __post_init__(self) -> None:
        if not self.kind or not self.examples:
            raise ValueError("a few-shot set needs a kind and at least one example")
        for i, example in enumerate(self.examples):
            if not example.user.strip() or not example.assistant.strip():
                raise ValueError(f"examples[{i}] of {self.kind} is empty on one side; give both")

    @property
    def digest(self) -> str:
        """BLAKE3 of all of it: two logs with the same begin with the same examples."""
        words = [
            self.kind,
            *(part for example in self.examples for part in (example.user, example.assistant)),
        ]
        return payload_hash("\0".join(words).encode("utf-8", "surrogatepass"))

    @property
    def complaints(self) -> tuple[str, ...]:
        """What may make it worse than none."""
        if len(self.examples) <= MANY:
            return ()
        return (
            f"{self.kind}: {len(self.examples)} examples; two or three at the edges serve better than more",
        )


def choose(sets: Sequence[FewShotSet], kind: str) -> FewShotSet | None:
    """The set of a kind, or None. Raises ValueError if there are two."""
    found = [one for one in sets if one.kind == kind]
    if len(found) > 1:
        raise ValueError(f"{len(found)} few-shot sets are of kind {kind!r}; keep one")
    return found[0] if found else None


def show(log: EventLog, examples: FewShotSet) -> list[int]:
    """Append a set as turns of user and assistant that stand before the task; their events. The same set again is none.

    Raises `EventLogError` if the log has another set, or already a task: examples belong to the prompt's beginning.
    """
    for event in log.read():
        if event.kind is EventKind.ASSISTANT:
            raise EventLogError(
                "examples after the model's first message would change the prompt's beginning; show them first"
            )
        if event.data.get("part") != PART:
            continue
        if event.data.get("set") == examples.digest:
            return []
        raise EventLogError(
            f"the log has other examples (event {event.seq}); a run keeps the set that it began with"
        )
    new = []
    for example in examples.examples:
        for role, text in (("user", example.user), ("assistant", example.assistant)):
            data = {"role": role, "part": PART, "kind": examples.kind, "set": examples.digest}
            new.append(NewEvent(EventKind.INSTRUCTION, text, data))
    return [event.seq for event in log.extend(new)]
