"""`/v1/sessions/{id}/…`: what becomes of a conversation's tokens in the cache. A session is a name that requests bear; it
begins with the first of them, and the server keeps nothing for it but where it ended."""

import asyncio
from typing import Annotated
from uuid import uuid4

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.cache_marks import session_bytes
from deeproot.runtime.server.errors import ApiError, invalid
from deeproot.runtime.server.prompt_source import TokenSource, given_ids
from deeproot.runtime.server.schemas import CacheSalt, RequestModel, SessionId
from deeproot.runtime.server.service_routes import json_response
from deeproot.runtime.server.state import ServerState, state_of
from deeproot.runtime.server.tenants import tenant_of
from deeproot.scheduler.questions import ForkQuestion, LeaveQuestion, Question, SessionAnswer


class CloseRequest(RequestModel):
    """`POST /v1/sessions/{id}/close`."""

    cache_salt: CacheSalt | None = None
    """Of the session's requests."""


class ForkRequest(CloseRequest):
    """`POST /v1/sessions/{id}/fork`."""

    new_id: SessionId | None = None
    """What the second session is called; made up if it is not given."""


class RewindRequest(CloseRequest):
    """`POST /v1/sessions/{id}/rewind`: how much of the session stays."""

    keep_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    keep: TokenSource | None = None
    """The same as the prompt that stays."""


class Forked(msgspec.Struct, frozen=True):
    id: str
    parent: str
    num_tokens: int
    """That both have in common, in the same pages."""
    object: str = "session"


class Left(msgspec.Struct, frozen=True):
    id: str
    scratch_pages: int
    """Pages that are evicted before all others from now on, since nobody else needs them."""
    kept_tokens: int
    object: str = "session"


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1/sessions")
    state_type = Annotated[ServerState, Depends(state_of)]
    read_fork = json_body(ForkRequest, max_body_bytes)
    read_rewind = json_body(RewindRequest, max_body_bytes)
    read_close = json_body(CloseRequest, max_body_bytes)

    @router.post("/{session_id}/fork", openapi_extra=openapi_body(ForkRequest))
    async def fork(
        session_id: str,
        request: Request,
        state: state_type,
        body: Annotated[ForkRequest, Depends(read_fork)],
    ) -> Response:
        """A second session that goes on from where this one is. Costs no memory: their pages are the same."""
        new_id = body.new_id or f"{session_id[:96]}-{uuid4().hex[:16]}"
        tenant = tenant_of(request, body.cache_salt)
        told = await _told(
            state,
            session_id,
            ForkQuestion(tenant.namespace, session_bytes(session_id), session_bytes(new_id)),
        )
        if told.taken:
            raise ApiError(
                409,
                f"There is a session {new_id!r} already: give another new_id.",
                param="new_id",
                code="conflict",
            )
        return json_response(Forked(new_id, session_id, told.num_tokens))

    @router.post("/{session_id}/rewind", openapi_extra=openapi_body(RewindRequest))
    async def rewind(
        session_id: str,
        request: Request,
        state: state_type,
        body: Annotated[RewindRequest, Depends(read_rewind)],
    ) -> Response:
        """Go back: what the session said behind a place is evicted before all else, unless somebody else needs it."""
        tenant = tenant_of(request, body.cache_salt)
        # Templates and tokenizers take long on long conversations.
        keep = await asyncio.to_thread(_kept, state, body, tenant)
        return json_response(await _left(state, session_id, tenant, keep))

    @router.post("/{session_id}/close", openapi_extra=openapi_body(CloseRequest))
    async def close(
        session_id: str,
        request: Request,
        state: state_type,
        body: Annotated[CloseRequest, Depends(read_close)],
    ) -> Response:
        """End a session: its tokens are evicted before all others, unless somebody else needs them."""
        return json_response(await _left(state, session_id, tenant_of(request, body.cache_salt), 0))

    return router


def _kept(state: ServerState, body: RewindRequest, tenant: Tenant) -> int:
    if (body.keep_tokens is None) == (body.keep is None):
        raise invalid("Give either keep_tokens, a number, or keep, the prompt that stays.", "keep_tokens")
    if body.keep_tokens is not None:
        return body.keep_tokens
    assert body.keep is not None
    ids = given_ids(state.ready(), body.keep, tenant, "keep")
    if not len(ids):
        raise invalid("keep is an empty prompt: to give up all of a session, close it.", "keep")
    return len(ids)


async def _left(state: ServerState, session_id: str, tenant: Tenant, keep_tokens: int) -> Left:
    question = LeaveQuestion(tenant.namespace, session_bytes(session_id), keep_tokens)
    told = await _told(state, session_id, question)
    return Left(session_id, told.scratch_pages, keep_tokens)


async def _told(state: ServerState, session_id: str, question: Question) -> SessionAnswer:
    told = await state.ready().client.ask(question, SessionAnswer)
    if not told.known:
        raise ApiError(
            404,
            f"There is no session {session_id!r}: a session begins when the first request that names it has ended, and"
            " is forgotten when it is closed, when the engine is started anew, or for thousands of newer ones.",
            code="not_found",
        )
    return told
