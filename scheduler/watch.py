"""Watches an engine loop from a thread of its own: a step that does not end is named."""

import logging
import os
import threading
from collections.abc import Callable

from deeproot.scheduler.loop import EngineLoop
from deeproot.scheduler.stats import PULSE_S

logger = logging.getLogger(__name__)

_NAMED = 8
"""Requests that a line names."""


class Watch:
    """Looks at a loop once a second and says how old its step is; names one that is too old, and again when it is twice
    as old."""

    def __init__(self, loop: EngineLoop, stuck_after_s: float, on_pulse: Callable[[float], None]) -> None:
        """on_pulse: called in the watch's thread with the age of the step in seconds, 0 between two steps."""
        self._loop = loop
        self._stuck_after_s = stuck_after_s
        self._next_line_s = stuck_after_s
        self._on_pulse = on_pulse
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="deeproot-watch", daemon=True).start()

    def stop(self) -> None:
        """No more pulses after the next one."""
        self._stopped.set()

    def look(self) -> None:
        """Once."""
        age = self._loop.step_age_s()
        self._on_pulse(age)
        if age < self._stuck_after_s:
            self._next_line_s = self._stuck_after_s
        elif age >= self._next_line_s:
            self._next_line_s = 2 * age
            logger.error("%s", self._line(age))

    def _run(self) -> None:
        while not self._stopped.wait(PULSE_S):
            self.look()

    def _line(self, age: float) -> str:
        rids = self._loop.running_rids()
        more = f" and {len(rids) - _NAMED} more" if len(rids) > _NAMED else ""
        named = ", ".join(rids[:_NAMED])
        return (
            f"a step has been running for {age:.0f} s and does not end: {len(rids)} requests wait for it ({named}{more}). "
            f"If it stays so, end the engine by kill -9 {os.getpid()}: these requests then fail with an error, and a "
            "new engine is started"
        )
