"""Requests that wait for their grammars to be compiled, before they join the queue."""

from collections.abc import Callable
from dataclasses import dataclass

from deeproot.engine.grammar import GrammarError
from deeproot.scheduler.constraints import Constraints, PendingConstraint
from deeproot.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request that waits no longer: with its constraint, or with what is wrong."""

    request: Request
    error: str | None = None


class CompilingRequests:
    """In order of arrival. Its methods are for the engine's thread."""

    def __init__(self, constraints: Constraints | None, on_ready: Callable[[], None]) -> None:
        """`constraints`: None if there can be none. `on_ready`: called when `take` may have something, from any
        thread."""
        self._constraints = constraints
        self._on_ready = on_ready
        self._pending: dict[str, tuple[Request, PendingConstraint | None]] = {}

    def add(self, request: Request, grammar: str) -> None:
        """Start to compile for a request."""
        pending = None
        if self._constraints is not None:
            pending = self._constraints.compile(grammar, self._on_ready)
        self._pending[request.rid] = (request, pending)

    def withdraw(self, rid: str) -> Request | None:
        """Take a request out whose grammar is no longer wanted; None if it is not here."""
        found = self._pending.pop(rid, None)
        return None if found is None else found[0]

    def requests(self) -> list[Request]:
        return [request for request, _ in self._pending.values()]

    @property
    def has_ready(self) -> bool:
        return any(map(_is_done, self._pending.values()))

    def take(self) -> list[Compiled]:
        """Those that are ready."""
        ready = [rid for rid, waiting in self._pending.items() if _is_done(waiting)]
        return [self._finish(*self._pending.pop(rid)) for rid in ready]

    def _finish(self, request: Request, pending: PendingConstraint | None) -> Compiled:
        if pending is None:
            return Compiled(
                request, "the output's form cannot be enforced: the engine's log says why none can"
            )
        try:
            request.constraint = pending.take()
        except GrammarError as error:
            return Compiled(request, f"the form that was asked for cannot be enforced: {error}")
        return Compiled(request)


def _is_done(waiting: tuple[Request, PendingConstraint | None]) -> bool:
    return waiting[1] is None or waiting[1].done
