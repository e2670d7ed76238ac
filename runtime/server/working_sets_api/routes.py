"""`/v1/working_sets`: logs of agents' runs, from which the server assembles each prompt."""

import asyncio
import time
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from deeproot.runtime.client import EngineUnavailable
from deeproot.runtime.context.working_set import Context
from deeproot.runtime.explain.history import Chat
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.server.answers import answer
from deeproot.runtime.server.auth import owner_of
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.cache_marks import SESSION_HEADER, session_bytes
from deeproot.runtime.server.chat_routes import conversation_of, prepare_chat
from deeproot.runtime.server.chat_shape import ChatShape
from deeproot.runtime.server.errors import ApiError, as_api_error, invalid
from deeproot.runtime.server.explaining import asker_of
from deeproot.runtime.server.generation_options import check_common, new_id
from deeproot.runtime.server.job import Job
from deeproot.runtime.server.precedence import has_room
from deeproot.runtime.server.searching import SearchingJob
from deeproot.runtime.server.service_routes import check_model_name, json_response
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.tenants import tenant_of
from deeproot.runtime.server.translated import translated
from deeproot.runtime.server.unsupported import CHAT_UNSUPPORTED
from deeproot.runtime.server.working_sets_api.recorded import RecordedJob
from deeproot.runtime.server.working_sets_api.schemas import (
    CompleteRequest,
    CreateWorkingSet,
    NewEvents,
)
from deeproot.scheduler.questions import LeaveQuestion, SessionAnswer

State = Annotated[ServerState, Depends(state_of)]
Owner = Annotated[str, Depends(owner_of)]
_OWN_FIELDS = {"events", "messages", "tools", "after", "record"}


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1/working_sets")
    _add_sets(router, max_body_bytes)
    _add_events(router, max_body_bytes)
    _add_replies(router, max_body_bytes)
    return router


def _add_sets(router: APIRouter, max_body_bytes: int) -> None:
    """Making, listing and forgetting sets."""
    read_create = json_body(CreateWorkingSet, max_body_bytes)

    @router.post("", openapi_extra=openapi_body(CreateWorkingSet))
    async def create(
        state: State, owner: Owner, body: Annotated[CreateWorkingSet, Depends(read_create)]
    ) -> Response:
        """A new working set, with its first events if the body has any."""
        return json_response(await state.working_sets.create(owner, body, state.ready().speech))

    @router.get("")
    async def list_all(state: State, owner: Owner) -> Response:
        """The caller's working sets, the oldest first."""
        return json_response({"object": "list", "data": await state.working_sets.all_of(owner)})

    @router.get("/{set_id}")
    async def retrieve(set_id: str, state: State, owner: Owner) -> Response:
        return json_response(await state.working_sets.get(owner, set_id))

    @router.delete("/{set_id}")
    async def delete(set_id: str, request: Request, state: State, owner: Owner) -> Response:
        """Forget a working set, its log and its files."""
        await state.working_sets.delete(owner, set_id)
        if state.serving is not None:
            namespace = tenant_of(request, None).namespace
            with suppress(EngineUnavailable):  # then its tokens are gone as well
                await state.serving.client.ask(
                    LeaveQuestion(namespace, session_bytes(set_id), 0), SessionAnswer
                )
        return json_response({"id": set_id, "object": "working_set", "deleted": True})


def _add_events(router: APIRouter, max_body_bytes: int) -> None:
    """What goes into a set's log and comes out of it."""
    read_events = json_body(NewEvents, max_body_bytes)

    @router.post("/{set_id}/events", openapi_extra=openapi_body(NewEvents))
    async def append(
        set_id: str, state: State, owner: Owner, body: Annotated[NewEvents, Depends(read_events)]
    ) -> Response:
        """Append events, all of them or none."""
        return json_response(await state.working_sets.append(owner, set_id, body))

    @router.get("/{set_id}/events")
    async def export(
        set_id: str, state: State, owner: Owner, after: Annotated[int, Query(ge=0, lt=2**63)] = 0
    ) -> Response:
        """The log as JSON lines: everything to make the same working set elsewhere."""
        lines = await state.working_sets.export(owner, set_id, after)
        return Response(lines, media_type="application/jsonl; charset=utf-8")


def _add_replies(router: APIRouter, max_body_bytes: int) -> None:
    """What the model is shown, and what it says to it."""
    read_complete = json_body(CompleteRequest, max_body_bytes)

    @router.get("/{set_id}/context")
    async def context(set_id: str, state: State, owner: Owner) -> Response:
        """What the next call would see, and why."""
        assembled = await state.working_sets.context(owner, set_id, state.ready().speech)
        return json_response(await asyncio.to_thread(_described, assembled))

    @router.post(
        "/{set_id}/complete", dependencies=[Depends(has_room)], openapi_extra=openapi_body(CompleteRequest)
    )
    async def complete(
        set_id: str,
        request: Request,
        state: State,
        owner: Owner,
        body: Annotated[CompleteRequest, Depends(read_complete)],
    ) -> Response:
        """Append what the body brings, assemble, and answer with a chat completion, whole or streamed."""
        return await _complete(set_id, request, state, owner, body)


async def _complete(
    set_id: str, request: Request, state: ServerState, owner: str, body: CompleteRequest
) -> Response:
    started = time.perf_counter()
    serving = state.ready()
    name = check_model_name(body.model, state)
    if body.n not in (None, 1):
        raise invalid("n must be 1: a working set goes on with one reply.", "n")
    completion_id = new_id("chatcmpl")
    sets = state.working_sets
    assembled = await sets.begin_reply(owner, set_id, body, serving.speech, record=body.record)
    job: RecordedJob | None = None
    try:
        fields = _chat_fields(request, body, set_id)
        inner = await asyncio.to_thread(_prepare, serving, request, fields, assembled, completion_id, started)
        job = RecordedJob(inner, sets, owner, set_id, record=body.record)
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        tokenizer = serving.speech.assets.tokenizer if body.logprobs else None
        shape = ChatShape(completion_id, name, include_usage, tokenizer)
        return await answer(request, state, job, shape, stream=bool(body.stream))
    except BaseException:  # a client that left, too: the set must not wait for the reply
        if job is not None:
            await job.give_up()
        elif body.record:
            await sets.end_reply(owner, set_id, None)
        raise


def _chat_fields(request: Request, body: CompleteRequest, set_id: str) -> dict[str, Any]:
    """What the body says as a chat completion, which is of a session of the set's name if it names no other."""
    fields = body.model_dump(exclude_unset=True, by_alias=True, exclude=_OWN_FIELDS)
    if SESSION_HEADER not in request.headers:
        fields["deeproot"] = {"session_id": set_id, **(fields.get("deeproot") or {})}
    return fields


def _prepare(
    serving: Serving,
    request: Request,
    fields: dict[str, Any],
    context: Context,
    completion_id: str,
    started: float,
) -> Job | SearchingJob:
    given = translated(
        {**fields, **context.request()}, ["events"] * len(context.messages), {"messages": "events"}
    )
    chat = given.body
    try:
        check_common(chat, CHAT_UNSUPPORTED)
        asker = asker_of(request, chat)
        sent = Chat(context.messages, context.tools, conversation_of(chat).template_kwargs)
        return prepare_chat(serving, chat, asker, completion_id, started, endpoint="working_sets", sent=sent)
    except (ApiError, OptionError) as error:
        raise given.located(as_api_error(error)) from None


def _described(context: Context) -> dict[str, object]:
    return {
        "object": "context",
        "messages": list(context.messages),
        "tools": list(context.tools),
        "token_ids": context.token_ids.tolist(),
        "boundaries": list(context.boundaries),
        "report": context.report.to_dict(),
    }
