"""Work that no answer waits for, put off until nobody waits for an answer."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from deeproot.runtime.client import EngineClient

logger = logging.getLogger(__name__)

_QUIET_S = 0.1
"""For how long the engine has had nothing to do before work begins: an agent's next request comes sooner."""
_LONGEST_S = 2.0
"""After this long work is done whatever else goes on."""


class LaterWork:
    """Does what it is given in order, one at a time, in a thread: it would take a core and Python's lock from requests.

    Its methods are for the event loop's thread.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        """With when it is to be done at the latest, by the event loop's clock."""
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def put(self, work: Callable[[], None]) -> None:
        """Have `work` done when the engine has nothing to do, or some seconds from now."""
        self._waiting.append((asyncio.get_running_loop().time() + _LONGEST_S, work))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def settle(self) -> None:
        """Return when all work that was put so far is done, at once."""
        async with self._turn:
            while self._waiting:
                await self._do(self._waiting.popleft()[1])

    async def _run(self) -> None:
        while self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._waiting[0][0]):
                    await self._quiet()
            async with self._turn:
                if self._waiting:  # nobody has settled it meanwhile
                    await self._do(self._waiting.popleft()[1])

    async def _quiet(self) -> None:
        while True:
            await self._client.wait_idle()
            seen = self._client.num_submitted
            await asyncio.sleep(_QUIET_S)
            if self._client.num_submitted == seen:
                return

    async def _do(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except Exception:  # nobody waits for it: it is logged, and the next is done
            logger.exception("work that was put off has failed")
