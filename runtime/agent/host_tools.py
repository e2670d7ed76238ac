"""Tools that the host answers from the log alone: the model's own list, and skills. They touch nothing of the workspace."""

from collections.abc import Sequence

from deeproot.runtime.agent.outcome import Outcome, result_event
from deeproot.runtime.agent.stream import Call
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.skills import use
from deeproot.runtime.context.skills.skill import Skill
from deeproot.runtime.context.status import todo
from deeproot.runtime.context.status.history import RunHistory

LIST_NAMES = (todo.REWRITE, todo.UPDATE)


class HostTools:
    """Answers for one log. `skills`: those that can be used; `history`: the log's, if the model keeps a list."""

    def __init__(
        self, log: EventLog, skills: Sequence[Skill] = (), history: RunHistory | None = None
    ) -> None:
        self._log = log
        self._skills = tuple(skills)
        self._history = history
        self.names = (*((use.NAME,) if skills else ()), *(LIST_NAMES if history is not None else ()))

    def events(self, made: Sequence[tuple[Call, Outcome]]) -> list[NewEvent]:
        """The results of a message's calls, in order, with what those of the host bring."""
        listed: tuple[todo.Todo, ...] = ()
        if self._history is not None:
            self._history.read()
            listed = self._history.todo
        known = set(use.used(self._log))
        events: list[NewEvent] = []
        for call, outcome in made:
            given = {"name": call.name, "arguments": call.arguments}
            if call.name not in self.names:
                events.append(result_event(call, outcome))
            elif call.name == use.NAME:
                new = use.answer_events(call.id, given, self._skills, known)
                known |= {str((event.data or {}).get("name", "")) for event in new[1:]}
                events += new
            else:
                new = todo.answer_events(call.id, given, listed)
                listed = todo.read_todo(str(new[1].payload)) if len(new) > 1 else listed
                events += new
        return events
