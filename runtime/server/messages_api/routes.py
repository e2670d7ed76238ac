"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients call them."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.server.answers import answer
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.chat_routes import (
    conversation_of,
    prepare_chat,
    prompt_of,
    shown_conversation,
)
from deeproot.runtime.server.errors import ApiError, as_api_error
from deeproot.runtime.server.explaining import asker_of
from deeproot.runtime.server.generation_options import check_common, new_id
from deeproot.runtime.server.job import Job
from deeproot.runtime.server.messages_api.schemas import CountTokensRequest, MessagesRequest
from deeproot.runtime.server.messages_api.shape import MessagesShape
from deeproot.runtime.server.messages_api.translate import translate
from deeproot.runtime.server.precedence import has_room
from deeproot.runtime.server.searching import SearchingJob
from deeproot.runtime.server.service_routes import check_model_name, json_response
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.tenants import tenant_of
from deeproot.runtime.server.unsupported import CHAT_UNSUPPORTED

PREFIX = "/v1/messages"

State = Annotated[ServerState, Depends(state_of)]


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix=PREFIX)
    read_body = json_body(MessagesRequest, max_body_bytes)
    read_count = json_body(CountTokensRequest, max_body_bytes)

    @router.post("", dependencies=[Depends(has_room)], openapi_extra=openapi_body(MessagesRequest))
    async def messages(
        request: Request, state: State, body: Annotated[MessagesRequest, Depends(read_body)]
    ) -> Response:
        """A reply, whole or streamed."""
        started = time.perf_counter()
        serving = state.ready()
        name = check_model_name(body.model, state)
        message_id = new_id("msg")
        job = await asyncio.to_thread(_prepare, serving, request, body, message_id, started)
        shape = MessagesShape(message_id, name, job.num_prompt, job.applied_edits)
        return await answer(request, state, job, shape, stream=bool(body.stream))

    @router.post("/count_tokens", openapi_extra=openapi_body(CountTokensRequest))
    async def count_tokens(
        request: Request, state: State, body: Annotated[CountTokensRequest, Depends(read_count)]
    ) -> Response:
        """How many tokens the prompt of such a request has."""
        serving = state.ready()
        check_model_name(body.model, state)
        count = await asyncio.to_thread(_count, serving, body, tenant_of(request, None))
        return json_response({"input_tokens": count})

    return router


def _prepare(
    serving: Serving, request: Request, body: MessagesRequest, message_id: str, started: float
) -> Job | SearchingJob:
    translated = translate(body)
    try:
        check_common(translated.body, CHAT_UNSUPPORTED)
        asker = asker_of(request, translated.body)
        return prepare_chat(serving, translated.body, asker, message_id, started, endpoint="messages")
    except (ApiError, OptionError) as error:
        raise translated.located(as_api_error(error)) from None


def _count(serving: Serving, body: CountTokensRequest, tenant: Tenant) -> int:
    translated = translate(body)
    try:
        sent = conversation_of(translated.body)
        chat, _, _ = shown_conversation(serving, tenant, translated.body, sent)
        _, _, prompt = prompt_of(serving, translated.body, chat, tenant.namespace)
    except (ApiError, OptionError) as error:
        raise translated.located(as_api_error(error)) from None
    return len(prompt.token_ids)
