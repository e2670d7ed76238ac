"""`GET /v1/explanations`: what was said of late requests, to whoever sent them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from deeproot.runtime.server.errors import ApiError, invalid
from deeproot.runtime.server.service_routes import json_response
from deeproot.runtime.server.state import ServerState, state_of
from deeproot.runtime.server.tenants import tenant_of

router = APIRouter(prefix="/v1")

_MAX_LISTED = 1000

State = Annotated[ServerState, Depends(state_of)]


@router.get("/explanations")
async def list_explanations(request: Request, state: State, limit: str = "20") -> Response:
    """The explanations of the caller's latest requests, newest first."""
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MAX_LISTED:
        raise invalid(f"limit is {limit!r}: give a number from 1 to {_MAX_LISTED}.", "limit")
    owner = tenant_of(request, None).owner
    serving = state.ready()
    await serving.later.settle()
    kept = serving.explainer.latest()
    return json_response({"data": [found for tenant, found in kept if tenant.owner == owner][: int(limit)]})


@router.get("/explanations/{rid:path}")
async def one_explanation(rid: str, request: Request, state: State) -> Response:
    serving = state.ready()
    await serving.later.settle()
    found = serving.explainer.get(rid)
    # Nothing tells a request of somebody else's from one that never was.
    if found is None or found[0].owner != tenant_of(request, None).owner:
        raise ApiError(
            404,
            f"There is no explanation of a request '{rid}': ids are those of answers, and only the latest are kept.",
            code="not_found",
        )
    return json_response(found[1])
