"""Routes about the server itself: is it alive, is it ready, what does it serve, how is it doing."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.responses import ModelCard, ModelList
from deeproot.runtime.server.state import ServerState, state_of

router = APIRouter()
models_router = APIRouter(prefix="/v1")

State = Annotated[ServerState, Depends(state_of)]


def json_response(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


@router.get("/health")
async def health() -> Response:
    """200 as long as the process answers."""
    return json_response({"status": "ok"})


@router.get("/ready")
async def ready(state: State) -> Response:
    """200 when requests can be served; 503 while the model is loading, after the engine failed, at shutdown."""
    state.ready()
    return json_response({"status": "ready"})


@router.get("/metrics")
async def metrics(state: State) -> Response:
    """Prometheus text."""
    # In a thread: the engine's figures are read between two of its steps, and a step may be long.
    text = await asyncio.to_thread(state.metrics.render)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@models_router.get("/models")
async def list_models(state: State) -> Response:
    return json_response(ModelList(data=[_card(state, name) for name in state.model_names]))


@models_router.get("/models/{name:path}")
async def one_model(name: str, state: State) -> Response:
    check_model_name(name, state)
    return json_response(_card(state, name))


def check_model_name(name: str | None, state: ServerState) -> str:
    """The name to answer with; None stands for whatever is served. Raises a 404 for an unknown one."""
    if name is None:
        return state.model_names[0]
    if name not in state.model_names:
        known = ", ".join(state.model_names)
        raise ApiError(
            404,
            f"The model '{name}' does not exist; this server has: {known}.",
            param="model",
            code="model_not_found",
        )
    return name


def _card(state: ServerState, name: str) -> ModelCard:
    max_model_len = state.ready().speech.defaults.max_model_len
    return ModelCard(id=name, created=state.created, max_model_len=max_model_len)
