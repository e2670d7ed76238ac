"""Waiting requests of one tenant and priority, with what their order is made of in arrays."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from deeproot.scheduler.request import Request

Places = NDArray[np.void]
"""What is known of the request at each place; of the fields of `_PLACE`."""
_PLACE = np.dtype(
    [
        ("arrived", np.float64),  # seconds
        ("num_missing", np.int64),
        ("num_tokens", np.int64),
        ("allowance", np.int64),  # what is left of it
        ("may_start", np.bool_),  # the first of its session, and not gone
    ]
)
_ROOM = 16


class Line:
    """In order of arrival. Arrays, because the order of thousands is asked for in each step, and changes with time.

    Those that go leave their places empty; the others move up when half of the places are empty.
    """

    def __init__(self) -> None:
        self._places: Places = np.zeros(_ROOM, dtype=_PLACE)
        self._requests: list[Request | None] = []
        self._num_left = 0

    def __len__(self) -> int:
        return self._num_left

    @property
    def num_missing(self) -> int:
        """Tokens that all have to compute."""
        return int(self._places["num_missing"][: len(self._requests)].sum())

    def add(self, request: Request, may_start: bool) -> None:
        """Append one that has just come. may_start: no earlier one of its session waits."""
        request.place = len(self._requests)
        if request.place == len(self._places):
            self._places = np.concatenate([self._places, np.zeros_like(self._places)])
        known = request.arrived, request.num_missing, request.num_tokens, request.allowance, may_start
        self._places[request.place] = known
        self._requests.append(request)
        self._num_left += 1

    def remove(self, request: Request) -> None:
        self._places[request.place] = np.zeros((), dtype=_PLACE)
        self._requests[request.place] = None
        self._num_left -= 1
        if len(self._requests) > 2 * self._num_left + _ROOM:
            self._move_up()

    def note(self, request: Request) -> None:
        """Its `num_missing` has changed."""
        self._places["num_missing"][request.place] = request.num_missing

    def let_start(self, request: Request) -> None:
        """No earlier one of its session waits any more."""
        self._places["may_start"][request.place] = True

    def overtake(self, request: Request, num_tokens: int) -> None:
        """`request` starts with so many tokens to compute: those that came before it have to wait for them."""
        self._places["allowance"][: request.place] -= num_tokens

    def first(
        self, n: int, rank_of: Callable[[Places], NDArray[np.float64]]
    ) -> list[tuple[float, int, Request]]:
        """The first `n` that may start, each with its rank and its order: those without allowance, then by rank, then order.

        rank_of: of the requests at these places, the lowest first.
        """
        may_start = self._places["may_start"][: len(self._requests)].nonzero()[0]
        places = self._places[may_start]
        ranks = np.where(places["allowance"] <= 0, -np.inf, rank_of(places))
        found = []
        for i in _smallest(ranks, n).tolist():
            request = self._requests[int(may_start[i])]
            assert request is not None
            found.append((float(ranks[i]), request.order, request))
        return found

    def _move_up(self) -> None:
        kept = [request for request in self._requests if request is not None]
        self._places[: len(kept)] = self._places[[request.place for request in kept]]
        for place, request in enumerate(kept):
            request.place = place
        self._requests[:] = kept


def _smallest(ranks: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Where the `n` smallest stand, in order; of equal ones the first."""
    if len(ranks) <= n:
        return ranks.argsort(kind="stable")
    limit = np.partition(ranks, n - 1)[n - 1]
    below, equal = (ranks < limit).nonzero()[0], (ranks == limit).nonzero()[0]
    return np.concatenate([below[ranks[below].argsort(kind="stable")], equal[: n - len(below)]])
