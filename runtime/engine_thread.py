"""The engine in a thread of this process, behind `EngineTransport`."""

import logging
import threading
from concurrent.futures import Future

from deeproot.runtime.engine_messages import EngineInfo
from deeproot.runtime.engine_transport import EngineEvents
from deeproot.scheduler.answering import answer
from deeproot.scheduler.loop import EngineLoop
from deeproot.scheduler.messages import AbortRequest, AddRequest, TokenOutput
from deeproot.scheduler.questions import Answer, Question
from deeproot.scheduler.scheduler import Scheduler
from deeproot.scheduler.stats import EngineStats

logger = logging.getLogger(__name__)


class ThreadTransport:
    """Runs an `EngineLoop` over a scheduler in a thread that it owns."""

    def __init__(self, scheduler: Scheduler, info: EngineInfo) -> None:
        self._engine_loop = EngineLoop(scheduler, self._emit)
        self._info = info
        self._events: EngineEvents | None = None
        self._closing = False
        # A daemon, so that a second signal can end the process while a long step is being computed.
        self._thread = threading.Thread(target=self._run, name="deeproot-engine", daemon=True)

    def start(self, events: EngineEvents) -> None:
        self._events = events
        events.on_up(self._info)
        self._thread.start()

    def submit(self, message: AddRequest | AbortRequest) -> None:
        self._engine_loop.submit(message)

    def ask(self, question: Question) -> "Future[Answer]":
        return self._engine_loop.inspect(lambda scheduler: answer(scheduler, question))

    def stats(self) -> EngineStats:
        return self._engine_loop.stats()

    def step_age_s(self) -> float:
        return self._engine_loop.step_age_s()

    def silence_s(self) -> float:
        return 0.0

    def close(self, timeout: float | None) -> bool:
        self._closing = True
        self._engine_loop.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _emit(self, outputs: list[TokenOutput]) -> None:
        assert self._events is not None
        self._events.on_outputs(outputs)

    def _run(self) -> None:
        reason = "The engine has stopped."
        try:
            self._engine_loop.run()
        except Exception as error:  # the thread's last: waiting clients are told why
            logger.exception("the engine thread failed")
            reason = f"The engine has failed: {type(error).__name__}: {error}"
        if not self._closing:
            assert self._events is not None
            self._events.on_down(reason)
