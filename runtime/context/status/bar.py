"""The status: what the host knows and the model should not have to work out, said at the very end of each prompt."""

from collections.abc import Sequence

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.status import todo
from deeproot.runtime.context.status.environment import Environment
from deeproot.runtime.context.status.history import PART, RunHistory
from deeproot.runtime.context.status.limits import CallLimit, tally
from deeproot.runtime.context.status.mode import Mode, Outlook, Rates, cheaper_mode
from deeproot.runtime.context.status.reading import Reading, spell
from deeproot.runtime.context.status.techniques import NO_TECHNIQUES, Techniques
from deeproot.runtime.context.status.time_sense import MANUAL, TimeSense

_CHARACTERS_A_TOKEN = 4
_SAY_AGAIN = 10
"""Replies after which a status that stays where it was said is said again."""


class StatusBar:
    """Writes the status of one log's run. What it says becomes an event, so that replay shows the same bytes.

    `limits`: calls to count against a limit. `time_sense`: None for none. `mode`: an `Outlook` chooses, from the run so far
    and what is expected; a run that once appended goes on to.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        techniques: Techniques = NO_TECHNIQUES,
        limits: Sequence[CallLimit] = (),
        time_sense: TimeSense | None = None,
        mode: Mode | Outlook = Mode.REPLACE,
    ) -> None:
        self.history = RunHistory(log)
        self._techniques = techniques
        self._limits = tuple(limits)
        self._time_sense = time_sense
        self._mode = mode

    def manual(self) -> str:
        """How the readings are to be read, to be logged once as policy (`record.policy`) before the first call; empty if
        they need none."""
        return MANUAL if self._time_sense is not None else ""

    def update(
        self,
        *,
        now_ns: int | None = None,
        environment: Environment | None = None,
        extra: Sequence[Reading] = (),
    ) -> int | None:
        """Append the status as it is now, if it is another than the last; its event, or None. Call it before each
        `assemble`, when every call of the model is answered.

        `now_ns`: nanoseconds since 1970 (None: when the log's newest event came, so that a run that was killed here and
        goes on says the same). `environment`: of the tools, shown if `system_state` is on. `extra`: more lines.
        """
        self.history.read()
        now = self.history.last_ns if now_ns is None else now_ns
        text = spell([*self.readings(now, environment), *extra])
        mode = self._choose(text)
        if text == self.history.status and not self._is_far(mode):
            return None
        return self.history.log.append(
            EventKind.STATE_CHANGE, text, data={"part": PART, "mode": mode.value}
        ).seq

    def readings(self, now_ns: int, environment: Environment | None = None) -> list[Reading]:
        """The lines, those that change most seldom first."""
        run, on = self.history, self._techniques
        lines = []
        if on.system_state:
            lines += (environment or Environment()).readings(now_ns, run.user_ns)
        lines += [Reading(name, run.states[name]) for name in sorted(run.states)]
        if on.todo:
            lines += todo.readings(run.todo)
        if on.call_counter:
            lines += tally(run.counts)
        for limit in self._limits:
            lines += limit.readings(run.calls)
        if self._time_sense is not None:
            lines += self._time_sense.readings(run.calls, now_ns, run.first_ns)
        return lines

    def _is_far(self, mode: Mode) -> bool:
        """Whether the last status stands so far up that it is said again, though nothing changed."""
        run = self.history
        return (
            mode is Mode.APPEND
            and bool(run.status)
            and len(run.replies) - run.replies_at_status >= _SAY_AGAIN
        )

    def _choose(self, text: str) -> Mode:
        if isinstance(self._mode, Mode):
            return self._mode
        run, outlook = self.history, self._mode
        if run.status_mode == Mode.APPEND or not run.replies:
            return Mode.APPEND if run.status_mode == Mode.APPEND else Mode.REPLACE
        reply = sum(run.replies) / len(run.replies) / _CHARACTERS_A_TOKEN
        changes = min(1.0, (run.statuses + 1) / len(run.replies))
        rates = Rates(outlook.count(text), reply, changes, outlook.turns)
        return cheaper_mode(rates, outlook.prices)
