"""Requests to an engine from ordinary, blocking code."""

from collections.abc import Generator, Sequence, Set
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import SimpleQueue
from threading import Condition

from deeproot.runtime.client import EngineUnavailable
from deeproot.runtime.engine_transport import A, EngineEvents, EngineTransport
from deeproot.scheduler.messages import AbortRequest, AddRequest, TokenOutput
from deeproot.scheduler.questions import Question

_Queue = SimpleQueue[TokenOutput | None]
"""None: the engine is gone."""


class SyncClient:
    """Several threads may use one client at a time."""

    def __init__(self, transport: EngineTransport) -> None:
        """Starts the engine."""
        self._transport = transport
        self._queues: dict[str, _Queue] = {}
        self._running: set[str] = set()
        """Requests that the engine has not ended, whether their readers know it or not."""
        self._ended = Condition()
        self._failure: str | None = None
        transport.start(
            EngineEvents(
                on_up=lambda _: None, on_outputs=self._deliver, on_down=self._fail, on_cannot_start=self._fail
            )
        )

    def run(self, requests: Sequence[AddRequest]) -> Generator[TokenOutput, None, None]:
        """Submit requests with new rids and yield their outputs as they come, until the last one's last.

        Closing the iterator, or an exception in whoever reads it, aborts what still runs and waits until it has
        ended. Raises EngineUnavailable if the engine fails.
        """
        queue: _Queue = SimpleQueue()
        pending = {request.rid for request in requests}
        try:
            self._queues.update(dict.fromkeys(pending, queue))
            with self._ended:
                self._running |= pending
            for request in requests:
                self._transport.submit(request)
            while pending:
                output = self._next(queue)
                if output.finish_reason is not None:
                    pending.discard(output.rid)
                yield output
        finally:
            with suppress(EngineUnavailable):
                self._abort(pending, queue)
            for request in requests:
                self._queues.pop(request.rid, None)
            self._note_ended({request.rid for request in requests})

    def abort(self, rid: str) -> None:
        """Ask the engine to end a request; its last output still comes."""
        self._transport.submit(AbortRequest(rid))

    def ask(self, question: Question, kind: type[A]) -> A:
        """The answer, which is of `kind`; waits for it. Raises EngineUnavailable."""
        if self._failure is not None:
            raise EngineUnavailable(self._failure)
        try:
            answer = self._transport.ask(question).result()
        except CancelledError:
            raise EngineUnavailable("The engine has stopped.") from None
        assert isinstance(answer, kind), f"{type(answer).__name__} is no answer to {type(question).__name__}"
        return answer

    def wait_idle(self) -> None:
        """Return when the engine has ended every request of all threads, or has failed."""
        with self._ended:
            self._ended.wait_for(lambda: not self._running)

    def close(self) -> None:
        """Stop the engine and wait until it has stopped."""
        self._transport.close(timeout=None)

    def _abort(self, pending: set[str], queue: _Queue) -> None:
        for rid in pending:
            self.abort(rid)
        while pending:
            output = self._next(queue)
            if output.finish_reason is not None:
                pending.discard(output.rid)

    def _next(self, queue: _Queue) -> TokenOutput:
        if self._failure is None:
            output = queue.get()
            if output is not None:
                return output
        raise EngineUnavailable(self._failure or "The engine has stopped.")

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            queue = self._queues.get(output.rid)
            if queue is not None:
                queue.put(output)
        self._note_ended({output.rid for output in outputs if output.finish_reason is not None})

    def _note_ended(self, rids: Set[str]) -> None:
        if not rids:
            return
        with self._ended:
            self._running -= rids
            self._ended.notify_all()

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._note_ended(self._running.copy())
        for queue in list(self._queues.values()):
            queue.put(None)
