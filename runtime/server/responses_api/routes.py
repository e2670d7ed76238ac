"""`/v1/responses`, as OpenAI's clients call it."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.server.answers import answer
from deeproot.runtime.server.auth import owner_of
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.chat_routes import prepare_chat
from deeproot.runtime.server.errors import ApiError, as_api_error
from deeproot.runtime.server.explaining import asker_of
from deeproot.runtime.server.generation_options import check_common
from deeproot.runtime.server.job import Job
from deeproot.runtime.server.precedence import has_room
from deeproot.runtime.server.responses_api.items import Item
from deeproot.runtime.server.responses_api.output import Fields, new_item_id
from deeproot.runtime.server.responses_api.schemas import ResponsesRequest
from deeproot.runtime.server.responses_api.shape import ResponsesShape
from deeproot.runtime.server.responses_api.translate import input_items, translate, wants_logprobs
from deeproot.runtime.server.searching import SearchingJob
from deeproot.runtime.server.service_routes import check_model_name, json_response
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.unsupported import CHAT_UNSUPPORTED

State = Annotated[ServerState, Depends(state_of)]
Owner = Annotated[str, Depends(owner_of)]

_MAX_LISTED = 100


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1/responses")
    read_body = json_body(ResponsesRequest, max_body_bytes)

    @router.post("", dependencies=[Depends(has_room)], openapi_extra=openapi_body(ResponsesRequest))
    async def create(
        request: Request, state: State, owner: Owner, body: Annotated[ResponsesRequest, Depends(read_body)]
    ) -> Response:
        """A response, whole or streamed."""
        started = time.perf_counter()
        serving = state.ready()
        name = check_model_name(body.model, state)
        earlier: Sequence[Item] = ()
        if body.previous_response_id is not None:
            earlier = await state.responses.conversation(owner, body.previous_response_id)
        response_id = new_item_id("resp")
        job = await asyncio.to_thread(_prepare, serving, request, body, earlier, response_id, started)

        def on_complete(response: Fields) -> None:
            if body.store is not False:
                state.responses.put_soon(owner, response, _spelled_out(input_items(body)))

        tokenizer = serving.speech.assets.tokenizer if wants_logprobs(body) else None
        shape = ResponsesShape(response_id, _repeated(body, name), on_complete, tokenizer)
        return await answer(request, state, job, shape, stream=bool(body.stream))

    @router.get("/{response_id}")
    async def retrieve(response_id: str, state: State, owner: Owner) -> Response:
        """A stored response."""
        return json_response((await state.responses.get(owner, response_id)).body)

    @router.delete("/{response_id}")
    async def delete(response_id: str, state: State, owner: Owner) -> Response:
        """Forget a response. What follows it can no longer be continued."""
        await state.responses.delete(owner, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.get("/{response_id}/input_items")
    async def list_input_items(
        response_id: str,
        state: State,
        owner: Owner,
        limit: Annotated[int, Query(ge=1, le=_MAX_LISTED)] = 20,
        order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
        after: str | None = None,
    ) -> Response:
        """The items that a stored response's request brought."""
        items = list((await state.responses.get(owner, response_id)).input)
        if order == "desc":
            items.reverse()
        return json_response(_page(items, limit, after))

    return router


def _prepare(
    serving: Serving,
    request: Request,
    body: ResponsesRequest,
    earlier: Sequence[Item],
    response_id: str,
    started: float,
) -> Job | SearchingJob:
    translated = translate(body, earlier)
    try:
        check_common(translated.body, CHAT_UNSUPPORTED)
        asker = asker_of(request, translated.body)
        return prepare_chat(serving, translated.body, asker, response_id, started, endpoint="responses")
    except (ApiError, OptionError) as error:
        raise translated.located(as_api_error(error)) from None


def _repeated(body: ResponsesRequest, model: str) -> Fields:
    """What a response says of its request."""
    tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
    text = body.text.model_dump(exclude_unset=True, by_alias=True) if body.text else {}
    return {
        "model": model,
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": body.tool_choice or "auto",
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _spelled_out(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as the API lists them: with ids, types, and content in parts."""
    return [{"id": new_item_id("item"), "type": "message", **item, **_parts(item)} for item in items]


def _parts(item: Item) -> dict[str, Any]:
    content = item.get("content")
    if not isinstance(content, str):
        return {}
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    return {"content": [{"type": kind, "text": content}]}


def _page(items: Sequence[dict[str, Any]], limit: int, after: str | None) -> Fields:
    ids = [item["id"] for item in items]
    if after is not None:
        if after not in ids:
            raise ApiError(404, f"There is no item {after!r} in this response.", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
