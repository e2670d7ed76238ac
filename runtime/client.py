"""The text side's view of an engine: submit requests, receive their tokens, always clean up."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from deeproot.runtime.engine_messages import EngineInfo
from deeproot.runtime.engine_transport import A, EngineEvents, EngineTransport
from deeproot.runtime.inbox import Inbox, to_make_way
from deeproot.runtime.options import SetupError
from deeproot.scheduler.messages import AbortRequest, AddRequest, TokenOutput
from deeproot.scheduler.questions import Question
from deeproot.scheduler.stats import EngineStats


class EngineUnavailable(Exception):
    """The engine has stopped or is being stopped; the text says why."""


class QueueFull(Exception):
    """More requests are in flight than the client accepts."""


class EngineClient:
    """Submits requests to an engine and hands each its outputs. Lives in one event loop."""

    def __init__(
        self,
        transport: EngineTransport,
        max_inflight: int,
        on_finished: Callable[[TokenOutput, AddRequest], None] = lambda _output, _request: None,
        on_up: Callable[[EngineInfo], None] = lambda _: None,
    ) -> None:
        """`on_finished` sees every request with its last output, also where the reader has left; `on_up` every
        engine that can be used. Both are called in the event loop."""
        self._transport = transport
        self._max_inflight = max_inflight
        self._on_finished = on_finished
        self._on_up = on_up
        self._first_engine: asyncio.Future[EngineInfo] | None = None
        self.num_restarts = 0
        """Engines after the first."""
        self.num_shed = 0
        """Requests that were ended to make way for more important ones."""
        self.num_submitted = 0
        """Requests that the engine has been given."""
        self._stopped = False
        self._inboxes: dict[str, Inbox] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._failure: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start the engine; called once, from within the event loop that will use the client."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._first_engine = self._loop.create_future()
        self._failure = "The model is being loaded: try again in a few seconds."
        self._transport.start(
            EngineEvents(
                on_up=lambda info: self._call_in_loop(lambda: self._engine_up(info)),
                on_outputs=self._take_outputs,
                on_down=lambda reason: self._call_in_loop(lambda: self._engine_gone(reason)),
                on_cannot_start=lambda reason: self._call_in_loop(lambda: self._cannot_start(reason)),
            )
        )

    async def wait_up(self) -> EngineInfo:
        """Return when the first engine can be used. Raises SetupError if there will be none."""
        assert self._first_engine is not None, "start() comes first"
        return await self._first_engine

    @property
    def failure(self) -> str | None:
        """Why no more requests are taken, or None."""
        return self._failure

    @property
    def num_inflight(self) -> int:
        """Requests that the engine has not yet ended."""
        return len(self._inboxes)

    def stats(self) -> EngineStats | None:
        """The engine's newest figures; None while there is no engine."""
        return self._transport.stats()

    async def ask(self, question: Question, kind: type[A]) -> A:
        """The answer, which is of `kind`. Raises EngineUnavailable."""
        if self._failure is not None:
            raise EngineUnavailable(self._failure)
        future = self._transport.ask(question)
        try:
            answer = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if future.cancelled():  # by the engine's end, and not by whoever asks
                raise EngineUnavailable("The engine has been stopped.") from None
            raise
        assert isinstance(answer, kind), f"{type(answer).__name__} is no answer to {type(question).__name__}"
        return answer

    def step_age_s(self) -> float:
        """See `EngineTransport`."""
        return self._transport.step_age_s()

    def silence_s(self) -> float:
        """See `EngineTransport`."""
        return self._transport.silence_s()

    def generate(self, requests: Sequence[AddRequest]) -> "Generation":
        """A generation over one or more requests, submitted together when it is entered."""
        return Generation(self, requests)

    def abort_all(self, reason: str) -> None:
        """End every request now and take no more; readers get EngineUnavailable with `reason`."""
        self._stopped = True
        self._fail(reason)
        for rid in self._inboxes:
            self._transport.submit(AbortRequest(rid))

    async def wait_idle(self) -> None:
        """Return when the engine has ended every request."""
        await self._idle.wait()

    def close(self, timeout: float = 10.0) -> bool:
        """Stop the engine; True if it has stopped within `timeout` seconds."""
        self._stopped = True
        self._failure = self._failure or "The engine has been stopped."
        return self._transport.close(timeout)

    def _submit(self, requests: Sequence[AddRequest], inbox: Inbox) -> None:
        if self._failure is not None:
            raise EngineUnavailable(self._failure)
        self._make_room(requests)
        self._idle.clear()
        self.num_submitted += len(requests)
        for request in requests:
            self._inboxes[request.rid] = inbox
            self._transport.submit(request)

    def check_room(self, priority: int = 0) -> None:
        """Raise QueueFull if a request of that priority would be turned away now."""
        if self._num_held() >= self._max_inflight and to_make_way(self._all(), 1, priority) is None:
            raise QueueFull(self._full())

    def _make_room(self, requests: Sequence[AddRequest]) -> None:
        excess = self._num_held() + len(requests) - self._max_inflight
        if excess <= 0:
            return
        leaving = to_make_way(self._all(), excess, min(request.priority for request in requests))
        if leaving is None:
            raise QueueFull(self._full())
        for inbox in leaving:
            self.num_shed += len(inbox.pending)
            inbox.shed = True
            inbox.fail(QueueFull("The queue is full and more important requests have come: try again later."))
            self._abort(list(inbox.pending))

    def _num_held(self) -> int:
        """Requests in flight, without those that are being ended to make way."""
        if len(self._inboxes) < self._max_inflight:
            return len(self._inboxes)
        return sum(not inbox.shed for inbox in self._inboxes.values())

    def _all(self) -> list[Inbox]:
        """Oldest first."""
        return list(dict.fromkeys(self._inboxes.values()))

    def _full(self) -> str:
        return f"{len(self._inboxes)} requests are in flight and at most {self._max_inflight} are taken: try again later."

    def _abort(self, rids: Sequence[str]) -> None:
        for rid in rids:
            if rid in self._inboxes:
                self._transport.submit(AbortRequest(rid))

    def _engine_up(self, info: EngineInfo) -> None:
        assert self._first_engine is not None
        if self._stopped:
            return
        if self._first_engine.done():
            self.num_restarts += 1
        self._failure = None
        self._on_up(info)
        if not self._first_engine.done():
            self._first_engine.set_result(info)

    def _cannot_start(self, reason: str) -> None:
        assert self._first_engine is not None
        self._fail(reason)
        if not self._first_engine.done():
            self._first_engine.set_exception(SetupError(reason))

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        assert self._loop is not None, "start() comes first"
        # A closed loop has no readers left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _take_outputs(self, outputs: list[TokenOutput]) -> None:
        if threading.get_ident() == self._loop_thread:
            self._deliver(outputs)
        else:
            self._call_in_loop(lambda: self._deliver(outputs))

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            inbox = self._inboxes.get(output.rid)
            if inbox is None:
                continue
            inbox.started = True
            if output.finish_reason is not None:
                del self._inboxes[output.rid]
                self._on_finished(output, inbox.pending.pop(output.rid))
            if inbox.listening:
                inbox.outputs.append(output)
                inbox.wake()
        if not self._inboxes:
            self._idle.set()

    def _fail(self, reason: str) -> None:
        """End the readers; the requests themselves stay in the books until the engine has ended them or is gone."""
        self._failure = reason
        for inbox in self._inboxes.values():
            inbox.fail(EngineUnavailable(reason))

    def _engine_gone(self, reason: str) -> None:
        self._fail(reason)
        self._inboxes.clear()
        self._idle.set()


class Generation:
    """The outputs of one or more requests: `async with client.generate(…) as outputs: async for batch in outputs`.

    A batch is a list of everything that has arrived since the last one, in order; each request's last output has a
    `finish_reason`, and the iteration ends after the last request's last. Leaving the `async with`, for whatever
    reason, aborts what still runs.
    """

    def __init__(self, client: EngineClient, requests: Sequence[AddRequest]) -> None:
        self._client = client
        self._requests = requests
        self._inbox = Inbox(requests)

    async def __aenter__(self) -> Self:
        self._client._submit(self._requests, self._inbox)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inbox.listening = False
        self._inbox.outputs.clear()
        self.abort(*list(self._inbox.pending))

    def abort(self, *rids: str) -> None:
        """Ask the engine to end requests of this generation; their last outputs still come."""
        self._client._abort(rids)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TokenOutput]:
        inbox = self._inbox
        while not inbox.outputs:
            if inbox.failure is not None:
                raise inbox.failure
            if not inbox.pending:
                raise StopAsyncIteration
            await inbox.wait()
        outputs, inbox.outputs = inbox.outputs, []
        return outputs
