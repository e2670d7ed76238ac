"""The responses store in a thread of its own: the server never waits for a disk."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from deeproot.runtime.server.errors import ApiError, unavailable
from deeproot.runtime.server.responses_api.store import (
    Item,
    ResponseStore,
    StoredResponse,
    UnknownResponse,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ResponseArchive:
    """What is put is there for every later question, since one thread does all in order."""

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        """Raises sqlite3.Error if the file cannot be opened."""
        self._store = ResponseStore(path, max_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="deeproot-responses")

    def put_soon(self, owner: str, body: dict[str, Any], items: Sequence[Item]) -> None:
        """Store a response. A failure (the disk is full) is logged: the client has its answer all the same."""
        self._thread.submit(self._store.put, owner, body, items).add_done_callback(_log_failure)

    async def get(self, owner: str, response_id: str) -> StoredResponse:
        """Raises ApiError (404)."""
        return await self._ask(lambda: self._store.get(owner, response_id), "response_id")

    async def conversation(self, owner: str, response_id: str) -> list[Item]:
        """See `ResponseStore.conversation`. Raises ApiError (404)."""
        return await self._ask(lambda: self._store.conversation(owner, response_id), "previous_response_id")

    async def delete(self, owner: str, response_id: str) -> None:
        """Raises ApiError (404)."""
        await self._ask(lambda: self._store.delete(owner, response_id), "response_id")

    def close(self) -> None:
        """Write what has been put, and end."""
        self._thread.shutdown(wait=True)
        self._store.close()

    async def _ask(self, question: Callable[[], T], field: str) -> T:
        try:
            return await asyncio.wrap_future(self._thread.submit(question))
        except UnknownResponse as unknown:
            raise ApiError(
                404,
                f"There is no response {unknown.response_id!r}: it was made with store: false, was deleted, or was "
                "forgotten to make room for newer ones.",
                param=field,
                code="response_not_found",
            ) from None
        except sqlite3.Error as error:
            logger.error("the store of responses failed: %s", error)
            raise unavailable("The store of responses has failed; the server's log says why.") from None


def _log_failure(done: "Future[None]") -> None:
    error = done.exception()
    if error is not None:
        logger.error("a response could not be stored: %s", error)
