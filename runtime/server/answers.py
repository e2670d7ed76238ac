"""How a job's pieces become an HTTP answer, whole or streamed; the shapes come from the routes."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from fastapi import Request, Response
from msgspec import UNSET

from deeproot.runtime.output_text import OutputEnd
from deeproot.runtime.server.disconnect import EventStream, until_disconnect
from deeproot.runtime.server.errors import as_api_error
from deeproot.runtime.server.explaining import with_own_answer
from deeproot.runtime.server.job import Job, Piece
from deeproot.runtime.server.responses import (
    CompletionTokensDetails,
    OwnAnswer,
    PromptTokensDetails,
    UsageInfo,
)
from deeproot.runtime.server.searching import SearchingJob
from deeproot.runtime.server.service_routes import json_response
from deeproot.runtime.server.sse import Framing
from deeproot.runtime.server.state import ServerState
from deeproot.runtime.server.turns import batches_of
from deeproot.runtime.server.working_sets_api.recorded import RecordedJob

AnyJob = Job | SearchingJob | RecordedJob


class Shape(Protocol):
    """Turns pieces into the bodies of one surface."""

    @property
    def framing(self) -> Framing:
        """How chunks are written into a stream."""
        ...

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo) -> object:
        """The body of an answer that is not streamed, from all its pieces in order."""
        ...

    def chunks(self, piece: Piece) -> list[object]:
        """The chunks of a stream that a piece makes."""
        ...

    def last_chunks(self, usage: UsageInfo, *, at_least_one: bool) -> list[object]:
        """The chunks that end a stream. `at_least_one`: there is something else to be said, in the last of them."""
        ...


async def answer(
    request: Request, state: ServerState, job: AnyJob, shape: Shape, *, stream: bool
) -> Response:
    """Run `job` and answer with what comes of it. A client that leaves ends it; ClientGone if before the answer."""
    if not stream:
        return json_response(await until_disconnect(request, _whole(request, state, job, shape)))
    events = _events(request, state, job, shape)
    # Waiting for the first news before answering at all: what fails until then gets a proper status.
    first = await until_disconnect(request, anext(events))
    return EventStream(
        first, events, state.options.limits.slow_reader_timeout_s, state.metrics.count_slow_reader
    )


async def _whole(request: Request, state: ServerState, job: AnyJob, shape: Shape) -> object:
    pieces: list[Piece] = []
    async with aclosing(batches_of(request, state, job)) as batches:
        async for batch in batches:
            pieces += batch
    return _complete(job, shape.whole(pieces, usage_of(pieces, job.choices)))


async def _events(
    request: Request, state: ServerState, job: AnyJob, shape: Shape
) -> AsyncGenerator[bytes, None]:
    framing = shape.framing
    ends: list[Piece] = []
    begun = False
    try:
        async with aclosing(batches_of(request, state, job)) as batches:
            async for batch in batches:
                ends += [piece for piece in batch if piece.end is not None]
                chunks = [chunk for piece in batch for chunk in shape.chunks(piece)]
                if chunks:
                    begun = True
                    yield b"".join(map(framing.event, chunks))
        chunks = shape.last_chunks(usage_of(ends, job.choices), at_least_one=_own_answer(job) is not None)
        if chunks:
            chunks[-1] = _complete(job, chunks[-1])
            yield b"".join(map(framing.event, chunks))
    except Exception as error:
        if not begun:
            raise
        yield framing.failure(as_api_error(error))
    if framing.end:
        yield framing.end


def _own_answer(job: AnyJob) -> OwnAnswer | None:
    """What the answer is to carry beside what its surface knows."""
    explains = job.explaining is not None and job.explaining.wanted
    kept = job.kept if isinstance(job, RecordedJob) else None
    if not explains and job.applied_edits is None and kept is None:
        return None
    return OwnAnswer(
        job.explaining.explanations if job.explaining is not None and explains else UNSET,
        job.applied_edits if job.applied_edits is not None else UNSET,
        kept or UNSET,
    )


def _complete(job: AnyJob, body: object) -> object:
    own = _own_answer(job)
    return body if own is None else with_own_answer(body, own)


def usage_of(pieces: Sequence[Piece], choices: int = 1) -> UsageInfo:
    """The usage of all choices together; of `choices` in a row, which share a prompt, the prompt counts once."""
    ends = [(piece.index, piece.end) for piece in pieces if piece.end is not None]
    firsts: list[OutputEnd] = [end for index, end in ends if index % choices == 0]
    prompt = sum(end.usage.prompt for end in firsts)
    cached = sum(end.usage.cached for end in firsts)
    output = sum(end.usage.output for _, end in ends)
    reasoning = sum(end.reasoning_tokens for _, end in ends)
    return UsageInfo(
        prompt, output, prompt + output, PromptTokensDetails(cached), CompletionTokensDetails(reasoning)
    )
