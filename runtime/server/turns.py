"""A job within its tenant's limits and until its deadline."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from fastapi import Request

from deeproot.runtime.client import EngineClient
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.job import Piece
from deeproot.runtime.server.metrics import Metrics
from deeproot.runtime.server.precedence import timeout_of
from deeproot.runtime.server.state import ServerState


class Runs(Protocol):
    """A job of any kind."""

    def run(self, client: EngineClient, metrics: Metrics) -> AsyncGenerator[list[Piece], None]:
        """See `Job.run`."""
        ...


async def batches_of(request: Request, state: ServerState, job: Runs) -> AsyncGenerator[list[Piece], None]:
    """What `job.run` yields, within the tenant's limits and until the deadline. Raises ApiError (429, 504)."""
    timeout = timeout_of(request, state)
    with state.limits.entered(request.state.api_key_digest):
        async with aclosing(job.run(state.ready().client, state.metrics)) as batches:
            if timeout is None:
                async for batch in batches:
                    yield batch
                return
            deadline = asyncio.get_running_loop().time() + timeout
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        batch = await anext(batches)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    state.metrics.count_deadline()
                    raise _too_late(timeout) from None
                yield batch


def _too_late(timeout: float) -> ApiError:
    return ApiError(
        504,
        f"The answer was not complete within {timeout:g} s, so the request was ended: ask for less, or for more time by "
        "the header X-Deeproot-Timeout, if the server's --request-timeout allows it.",
        code="deadline_exceeded",
    )
