"""The HTTP application."""

from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from deeproot import __version__
from deeproot.runtime.server import (
    cache_routes,
    chat_routes,
    completion_routes,
    explain_routes,
    page_routes,
    service_routes,
    session_routes,
    tokenize_routes,
)
from deeproot.runtime.server.auth import KeyCheck
from deeproot.runtime.server.body import openapi_schemas
from deeproot.runtime.server.browsers import BrowserGuard
from deeproot.runtime.server.cache_routes import PriceRequest, ProbeRequest, WarmRequest
from deeproot.runtime.server.errors import install_error_handlers
from deeproot.runtime.server.messages_api import routes as messages_routes
from deeproot.runtime.server.messages_api.errors import error_body
from deeproot.runtime.server.messages_api.schemas import CountTokensRequest, MessagesRequest
from deeproot.runtime.server.responses_api import routes as responses_routes
from deeproot.runtime.server.responses_api.schemas import ResponsesRequest
from deeproot.runtime.server.schemas import ChatCompletionRequest, CompletionRequest, RequestModel
from deeproot.runtime.server.session_routes import CloseRequest, ForkRequest, RewindRequest
from deeproot.runtime.server.state import ServerState
from deeproot.runtime.server.tokenize_routes import DetokenizeRequest, TokenizeRequest
from deeproot.runtime.server.working_sets_api import routes as working_sets_routes
from deeproot.runtime.server.working_sets_api.schemas import CompleteRequest, CreateWorkingSet, NewEvents

_BODIES: tuple[type[RequestModel], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    MessagesRequest,
    CountTokensRequest,
    ResponsesRequest,
    TokenizeRequest,
    DetokenizeRequest,
    CreateWorkingSet,
    NewEvents,
    CompleteRequest,
    ProbeRequest,
    PriceRequest,
    ForkRequest,
    RewindRequest,
    CloseRequest,
    WarmRequest,
)


def create_app(state: ServerState) -> FastAPI:
    """An application over `state`, which it does not start or stop."""
    app = _API(title="deeproot", version=__version__)
    app.state.server = state
    install_error_handlers(app, {messages_routes.PREFIX: error_body})
    app.include_router(service_routes.router)
    app.include_router(page_routes.make_page_router())
    guarded = [Depends(KeyCheck(state.options.api_keys))]
    max_bytes = state.options.max_body_bytes
    app.include_router(service_routes.models_router, dependencies=guarded)
    app.include_router(chat_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(completion_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(messages_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(responses_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(working_sets_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(tokenize_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(page_routes.router, dependencies=guarded)
    app.include_router(session_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(cache_routes.make_router(max_bytes), dependencies=guarded)
    app.include_router(explain_routes.router, dependencies=guarded)
    if state.options.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=state.options.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(BrowserGuard, options=state.options)
    return app


class _API(FastAPI):
    """Completes the OpenAPI document: bodies are read by our own dependency, of which FastAPI knows nothing."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(openapi_schemas(_BODIES))
        return document
