"""Requests from their arrival to their start: checked, bounded, and their grammars compiled."""

from collections.abc import Callable

from deeproot.scheduler.compiling import CompilingRequests
from deeproot.scheduler.constraints import Constraints
from deeproot.scheduler.messages import AddRequest, TokenOutput
from deeproot.scheduler.request import Request
from deeproot.scheduler.stats import Counters
from deeproot.scheduler.waiting import WaitingRequests


class Arrivals:
    """The requests that do not run yet. Its methods are for the engine's thread."""

    def __init__(
        self,
        max_model_len: int,
        page_size: int,
        constraints: Constraints | None,
        counters: Counters,
        waiting: WaitingRequests,
        enqueue: Callable[[Request], None],
    ) -> None:
        """Without `constraints`, requests with a grammar are refused. waiting: those that may start; `enqueue` adds one."""
        self.waiting = waiting
        self._enqueue = enqueue
        self.limits: dict[str, int] = {}
        """How many tokens each request that has not ended may have, its prompt's included, by rid."""
        self.on_compiled: Callable[[], None] = lambda: None
        """Called from any thread when `has_work` may have become true by itself."""
        self._max_model_len = max_model_len
        self._page_size = page_size
        self._counters = counters
        self._compiling = CompilingRequests(constraints, lambda: self.on_compiled())
        self._refused: list[TokenOutput] = []

    def add(self, message: AddRequest) -> None:
        """Take a request; one that can never run is among the next `settle`'s refusals.

        Raises ValueError if a request of the same rid has not ended.
        """
        if message.rid in self.limits:
            raise ValueError(f"a request {message.rid!r} is running already")
        request = Request.from_message(message, self._page_size)
        error = request.why_impossible(self._max_model_len)
        if error is not None:
            self._refuse(request, error)
            return
        limit = min(request.num_prompt + request.sampling.max_tokens, self._max_model_len)
        self.limits[request.rid] = limit
        self.waiting.shares.open(request.tenant)
        self._counters.prompt += request.num_prompt
        if request.sampling.grammar is None:
            self._enqueue(request)
        else:
            self._compiling.add(request, request.sampling.grammar)

    def withdraw(self, rid: str) -> Request | None:
        """Take a request out that has not started; None if it is not here. Its limit stays."""
        compiling = self._compiling.withdraw(rid)
        if compiling is not None:
            return compiling
        return self.waiting.withdraw(rid)

    @property
    def has_work(self) -> bool:
        """Whether something can start or end; a request whose grammar is being compiled cannot yet."""
        return bool(self.waiting or self._refused or self._compiling.has_ready)

    def requests(self) -> list[Request]:
        """All that are here."""
        return [*self._compiling.requests(), *self.waiting]

    def settle(self) -> list[TokenOutput]:
        """Let those whose grammars are compiled wait to start; returns the refusals since the last call."""
        for compiled in self._compiling.take():
            if compiled.error is None:
                self._enqueue(compiled.request)
            else:
                del self.limits[compiled.request.rid]
                self.waiting.shares.close(compiled.request.tenant)
                self._refuse(compiled.request, compiled.error)
        refused, self._refused = self._refused, []
        return refused

    def _refuse(self, request: Request, error: str) -> None:
        last = TokenOutput(request.rid, None, error=error, invalid=True)
        self._refused.append(request.finished("error", last, request.num_prompt))
