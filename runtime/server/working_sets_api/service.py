"""Working sets in a thread of their own: logs and tokenizers are for one thread, and the server never waits for them."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.reply_events import ParsedReply
from deeproot.runtime.context.budget import BudgetError
from deeproot.runtime.context.jsonl import export_lines
from deeproot.runtime.context.pipeline_filter import PipelineFilter
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.working_set import Context, WorkingSet
from deeproot.runtime.server.errors import ApiError, invalid, unavailable
from deeproot.runtime.server.working_sets_api.events import new_events, policy_of, reply_event
from deeproot.runtime.server.working_sets_api.schemas import CreateWorkingSet, NewEvents
from deeproot.runtime.server.working_sets_api.store import (
    Conflict,
    KeptSet,
    NoRoom,
    UnknownWorkingSet,
    WorkingSetStore,
)
from deeproot.runtime.speech import Speech

logger = logging.getLogger(__name__)

T = TypeVar("T")
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Model:
    """What assembling takes of the model that is served."""

    speech: Speech
    tokens: SegmentTokenizer
    template: ChatTemplate


class WorkingSetService:
    """All questions are answered in the order in which they are asked. Every one may raise ApiError."""

    def __init__(self, folder: Path | None, max_sets: int, max_bytes: int) -> None:
        """See `WorkingSetStore`."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="deeproot-working-sets")
        self._store = self._thread.submit(WorkingSetStore, folder, max_sets, max_bytes).result()
        self._model: _Model | None = None

    async def create(self, owner: str, body: CreateWorkingSet, speech: Speech) -> Fields:
        """A new set, described."""

        def work() -> Fields:
            self._assembler(body, speech)  # what cannot be assembled is not kept
            settings = body.model_dump(
                mode="json", exclude={"events", "messages", "tools"}, exclude_unset=True
            )
            return describe(self._store.create(owner, settings, new_events(body)))

        return await self._ask(work)

    async def all_of(self, owner: str) -> list[Fields]:
        return await self._ask(lambda: [describe(kept) for kept in self._store.of(owner)])

    async def get(self, owner: str, set_id: str) -> Fields:
        return await self._ask(lambda: describe(self._store.get(owner, set_id)))

    async def append(self, owner: str, set_id: str, body: NewEvents) -> Fields:
        """The set described, with what the body brought."""

        def work() -> Fields:
            kept = self._store.get(owner, set_id)
            self._append(kept, body)
            return describe(kept)

        return await self._ask(work)

    async def context(self, owner: str, set_id: str, speech: Speech) -> Context:
        """What the next call sees."""
        return await self._ask(lambda: self._assemble(self._store.get(owner, set_id), speech))

    async def begin_reply(
        self, owner: str, set_id: str, body: NewEvents, speech: Speech, *, record: bool
    ) -> Context:
        """Append what the body brings and assemble. `record`: nothing else is taken until `end_reply`."""

        def work() -> Context:
            kept = self._store.get(owner, set_id)
            if record and kept.replying:
                raise Conflict("A reply is being written to this working set: wait until it has ended.")
            self._append(kept, body)
            context = self._assemble(kept, speech)
            kept.replying = record or kept.replying
            return context

        return await self._ask(work)

    async def end_reply(self, owner: str, set_id: str, reply: ParsedReply | None) -> int:
        """Append the reply (None: there is none) and let others append. The number of the log's newest event."""

        def work() -> int:
            kept = self._store.get(owner, set_id)
            kept.replying = False
            return len(kept.log) if reply is None else self._store.reply(kept, reply_event(reply))

        return await self._ask(work)

    async def export(self, owner: str, set_id: str, after: int) -> str:
        """The events behind number `after` as JSON lines."""

        def work() -> str:
            log = self._store.get(owner, set_id).log
            return "".join(f"{line}\n" for line in export_lines(log, after + 1))

        return await self._ask(work)

    async def delete(self, owner: str, set_id: str) -> None:
        await self._ask(lambda: self._store.delete(owner, set_id))

    def close(self) -> None:
        """Finish what was asked, and close the logs."""
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=True)

    def _append(self, kept: KeptSet, body: NewEvents) -> None:
        self._store.append(kept, new_events(body), body.after)

    def _assemble(self, kept: KeptSet, speech: Speech) -> Context:
        if kept.assembler is None:
            kept.assembler = self._assembler(
                CreateWorkingSet.model_validate(kept.settings, strict=False), speech
            )
        if not len(kept.log):
            raise invalid("The working set is empty: append a message of the user first.", "events")
        return kept.assembler.assemble(kept.log)

    def _assembler(self, body: CreateWorkingSet, speech: Speech) -> WorkingSet:
        """Raises ApiError for settings that the model served cannot meet."""
        model = self._model_of(speech)
        return WorkingSet(
            policy=policy_of(body, speech.defaults.max_model_len),
            tokenizer=model.tokens,
            template=model.template,
            defence=body.defence,
            filters=PipelineFilter if body.filters else None,
            result_tokens=body.result_tokens,
            keep_symbols=body.keep_symbols,
            techniques=Techniques(timestamps=body.timestamps, call_counter=body.call_counter),
            thinking=body.thinking,
        )

    def _model_of(self, speech: Speech) -> _Model:
        """The texts never change while a server runs; its engine may be started anew."""
        if self._model is None:
            tokenizer = speech.assets.tokenizer
            template = ChatTemplate(
                speech.require_template().tool_source,
                special_texts=tokenizer.special_texts,
                processes=speech.processes,
            )
            self._model = _Model(speech, SegmentTokenizer(tokenizer), template)
        return self._model

    async def _ask(self, question: Callable[[], T]) -> T:
        try:
            return await asyncio.wrap_future(self._thread.submit(question))
        except UnknownWorkingSet as unknown:
            raise ApiError(
                404,
                f"There is no working set {str(unknown)!r}: it was never made, or deleted.",
                code="not_found",
            ) from None
        except Conflict as conflict:
            raise ApiError(409, str(conflict), param="after", code="conflict") from None
        except NoRoom as full:
            raise ApiError(413, str(full), code="working_sets_full") from None
        except BudgetError as error:
            raise invalid(f"{error}.", "budget", "over_budget") from None
        except TemplateError as error:
            raise invalid(f"{error}.", "events", "invalid_conversation") from None
        except (sqlite3.Error, OSError) as error:
            logger.error("the store of working sets failed: %s", error)
            raise unavailable("The store of working sets has failed; the server's log says why.") from None


def describe(kept: KeptSet) -> Fields:
    """A working set as the API shows it."""
    return {
        "id": kept.set_id,
        "object": "working_set",
        "created": kept.created,
        "num_events": len(kept.log),
        "num_bytes": kept.num_bytes,
        "settings": kept.settings,
    }
