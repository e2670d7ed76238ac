"""Waiting for what must not be left half done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def uncancelled(work: Coroutine[Any, Any, _T]) -> tuple[_T, bool]:
    """The result, and whether the task was cancelled while it waited: then the caller has to see to its own end.

    Also for starting processes: asyncio 3.11 waits for ever if that is cancelled.
    """
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
        except BaseException:  # Its own; `result` raises it.
            break
    return task.result(), cancelled
