"""A chat completion whose reply goes into a working set's log."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from deeproot.runtime.chat.reply_events import ReplyEvent, collect
from deeproot.runtime.client import EngineClient
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.explaining import Explaining
from deeproot.runtime.server.job import Job, Piece
from deeproot.runtime.server.metrics import Metrics
from deeproot.runtime.server.responses import AppliedEdit, KeptReply
from deeproot.runtime.server.searching import SearchingJob
from deeproot.runtime.server.working_sets_api.service import WorkingSetService


class RecordedJob:
    """See `Job`. The reply is in the log before its end is told; a reply that does not end well never is."""

    choices = 1

    def __init__(
        self, job: Job | SearchingJob, service: WorkingSetService, owner: str, set_id: str, *, record: bool
    ) -> None:
        self._job = job
        self._service = service
        self._owner = owner
        self._set_id = set_id
        self._open = record
        """Whether the set still waits for this reply."""
        self.kept: KeptReply | None = None
        """Where the reply stands, once it does."""

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return self._job.num_prompt

    @property
    def explaining(self) -> Explaining | None:
        """See `Job`."""
        return self._job.explaining

    @property
    def applied_edits(self) -> tuple[AppliedEdit, ...] | None:
        """See `Job`."""
        return self._job.applied_edits

    async def run(self, client: EngineClient, metrics: Metrics) -> AsyncGenerator[list[Piece], None]:
        """See `Job.run`."""
        events: list[ReplyEvent] = []
        last: list[Piece] = []
        try:
            async with aclosing(self._job.run(client, metrics)) as batches:
                async for batch in batches:
                    events += [event for piece in batch for event in piece.events]
                    last += [piece for piece in batch if piece.end is not None]
                    if going_on := [piece for piece in batch if piece.end is None]:
                        yield going_on
            if self._open:
                self._open = False
                number = await self._service.end_reply(self._owner, self._set_id, collect(events))
                self.kept = KeptReply(self._set_id, number)
            yield last
        finally:
            await self.give_up()

    async def give_up(self) -> None:
        """Let the set go on without this reply, if it still waits for it."""
        if self._open:
            self._open = False
            with suppress(ApiError):  # the set may be deleted by now
                await self._service.end_reply(self._owner, self._set_id, None)
