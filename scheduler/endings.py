"""How requests stop to run: at their end, with an error, aborted, or set back."""

from collections import deque

import numpy as np

from deeproot.scheduler.arrivals import Arrivals
from deeproot.scheduler.flight import Flight, Step
from deeproot.scheduler.holdings import Holdings
from deeproot.scheduler.messages import FinishReason, TokenOutput
from deeproot.scheduler.request import Request
from deeproot.scheduler.table import RunningTable


class Endings:
    """Takes requests out of the running table; what they hold goes as soon as no step in flight uses it."""

    def __init__(
        self, table: RunningTable, holdings: Holdings, flights: deque[Flight], arrivals: Arrivals
    ) -> None:
        """flights: the steps in flight, oldest first; the scheduler's own, which it changes."""
        self._table = table
        self._holdings = holdings
        self._flights = flights
        self._arrivals = arrivals
        self.leaving: dict[Request, bool] = {}
        """Requests that have ended but that a step in flight computes; whether their computed tokens stay cached."""

    def end(
        self, request: Request, reason: FinishReason, last: TokenOutput, *, keep: bool = True
    ) -> TokenOutput:
        """Run a request no longer. keep: its computed tokens stay cached.

        Returns `last`, its last output, with how it ended.
        """
        self._account(request)
        output = self.finish(request, reason, last, int(self._table.num_tokens[request.row]))
        self._table.retire(request)
        if self._is_in_flight(request):
            self.leaving[request] = keep
        else:
            self._holdings.leave(request, keep=keep)
        return output

    def fail(self, row: int, error: str) -> TokenOutput:
        """End a running request with an error; what it has computed is in doubt."""
        request = self._table.request(row)
        return self.end(request, "error", TokenOutput(request.rid, None, error=error), keep=False)

    def fail_all(self, step: Step, error: str) -> list[TokenOutput]:
        """End the requests of a step that failed, but for those that have ended."""
        gone = [request.row for request in self.leaving]
        return [self.fail(row, error) for row in step.rows[~np.isin(step.rows, gone)].tolist()]

    def preempt(self, request: Request) -> None:
        """Set a request back that is in no step in flight."""
        row = request.row
        self._account(request)
        request.token_ids = self._table.tokens[row, : self._table.num_tokens[row]].tobytes()
        request.tokens_when_preempted = request.num_missing = request.num_tokens
        self._table.retire(request)
        self._holdings.leave(request, keep=True, ended=False)
        self._arrivals.waiting.put_back(request)

    def finish(
        self, request: Request, reason: FinishReason, last: TokenOutput, num_tokens: int
    ) -> TokenOutput:
        """Forget a request that ends with `num_tokens` tokens and does not run any more, or never did."""
        del self._arrivals.limits[request.rid]
        self._arrivals.waiting.shares.close(request.tenant)
        return request.finished(reason, last, num_tokens)

    def settle(self) -> None:
        """Let go what those held that have ended and are in no step in flight any more."""
        for request in [request for request in self.leaving if not self._is_in_flight(request)]:
            self._holdings.leave(request, keep=self.leaving.pop(request))

    def _is_in_flight(self, request: Request) -> bool:
        return any(flight.has(request.row) for flight in self._flights)

    def _account(self, request: Request) -> None:
        """Book what a run that ends now has computed."""
        row = request.row
        num_new = int(self._table.num_tokens[row]) - request.num_tokens
        self._arrivals.waiting.shares.charge(request.tenant, num_new)
        request.account_run(int(self._table.num_computed[row]))
