"""What has arrived for one generation, and which of several makes way when there are too many."""

import asyncio
from collections.abc import Iterable, Sequence

from deeproot.scheduler.messages import AddRequest, TokenOutput


class Inbox:
    """What has arrived for one `Generation` and was not read yet. At most `max_tokens` entries a request."""

    __slots__ = (
        "_waiter",
        "failure",
        "listening",
        "num_requests",
        "outputs",
        "pending",
        "priority",
        "shed",
        "started",
    )

    def __init__(self, requests: Sequence[AddRequest]) -> None:
        self.pending = {request.rid: request for request in requests}
        """Requests that have not ended."""
        self.num_requests = len(requests)
        self.outputs: list[TokenOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        self.failure: Exception | None = None
        self.listening = True
        self.priority = min((request.priority for request in requests), default=0)
        self.started = False
        """Whether the engine has said anything about it."""
        self.shed = False
        """Whether it was ended to make way for another."""

    def fail(self, failure: Exception) -> None:
        """Let the reader raise `failure` once it has read what has arrived."""
        self.failure = failure
        self.wake()

    async def wait(self) -> None:
        """Return after the next `wake`. For one reader, who looks what has arrived before each wait."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def to_make_way(inboxes: Iterable[Inbox], num_requests: int, priority: int) -> list[Inbox] | None:
    """Which generations, least important and newest first, are to end so that `num_requests` find room.

    inboxes: oldest first. Only those of a greater number of priority that wait for their first token; None if these
    are too few.
    """
    chosen, room = [], 0
    waiting = [one for one in inboxes if not one.started and not one.shed and one.priority > priority]
    waiting.reverse()
    for inbox in sorted(waiting, key=lambda one: -one.priority):  # stable: newest first
        if room >= num_requests:
            break
        chosen.append(inbox)
        room += len(inbox.pending)
    return chosen if room >= num_requests else None
