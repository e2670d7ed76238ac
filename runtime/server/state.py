"""What a server knows; it hangs on `app.state` and is handed to the routes."""

import asyncio
import random
import sqlite3
import time
from dataclasses import dataclass, field

from fastapi import Request

from deeproot.runtime.chat.search_memory import SearchMemory
from deeproot.runtime.client import EngineClient
from deeproot.runtime.continuations import Continuations
from deeproot.runtime.explain.explainer import Explainer
from deeproot.runtime.options import ServerOptions, SetupError
from deeproot.runtime.server.errors import unavailable
from deeproot.runtime.server.later import LaterWork
from deeproot.runtime.server.limits import TenantLimits
from deeproot.runtime.server.metrics import Metrics
from deeproot.runtime.server.responses_api.archive import ResponseArchive
from deeproot.runtime.server.shared_prefixes import SharedPrefixes
from deeproot.runtime.server.shared_roots import SharedRoots
from deeproot.runtime.server.tracing import OpenTelemetryTracer
from deeproot.runtime.server.working_sets_api.service import WorkingSetService
from deeproot.runtime.speech import Speech
from deeproot.runtime.tool_pauses import ToolPauses


@dataclass(slots=True)
class Serving:
    """A loaded, warm engine and what requests need to use it."""

    speech: Speech
    client: EngineClient
    seeds: random.Random
    """Source of the seeds of requests that bring none."""
    continuations: Continuations
    explainer: Explainer
    searches: SearchMemory = field(default_factory=SearchMemory)
    pauses: ToolPauses = field(default_factory=ToolPauses)
    roots: SharedRoots = field(default_factory=SharedRoots)
    shared: SharedPrefixes = field(default_factory=SharedPrefixes)
    warmings: set[asyncio.Task[None]] = field(default_factory=set)
    warm_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    background: set[asyncio.Task[None]] = field(default_factory=set)
    """What is being told to the engine beside the answers."""
    later: LaterWork = field(init=False)

    def __post_init__(self) -> None:
        self.later = LaterWork(self.client)


@dataclass(slots=True)
class ServerState:
    """Everything about one server. `serving` is None until the model is loaded and warm."""

    options: ServerOptions
    model_names: tuple[str, ...]
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))
    serving: Serving | None = None
    responses: ResponseArchive = field(init=False)
    working_sets: WorkingSetService = field(init=False)
    limits: TenantLimits = field(init=False)
    closing: str | None = None
    """Why no more requests are taken, once the server shuts down."""

    def __post_init__(self) -> None:
        """Raises SetupError if a store cannot be opened, or traces are wanted and cannot be made."""
        self.limits = TenantLimits(self.options.limits)
        endpoint = self.options.otlp_traces_endpoint
        if endpoint is not None:
            self.metrics = Metrics(OpenTelemetryTracer(endpoint, self.model_names[0]))
        path = self.options.response_store
        try:
            self.responses = ResponseArchive(path, self.options.response_store_bytes)
        except sqlite3.Error as error:
            raise SetupError(f"--response-store {path} cannot be opened: {error}") from None
        options = self.options
        try:
            self.working_sets = WorkingSetService(
                options.working_set_store, options.max_working_sets, options.working_set_bytes
            )
        except OSError as error:
            raise SetupError(
                f"--working-set-store {options.working_set_store} cannot be opened: {error}"
            ) from None

    def close(self) -> None:
        """Write what is still to be written."""
        self.responses.close()
        self.metrics.tracer.close()
        self.working_sets.close()

    def ready(self) -> Serving:
        """What is being served; raises a 503 before, after, and when the engine has failed."""
        if self.closing is not None:
            raise unavailable(self.closing)
        if self.serving is None:
            raise unavailable("The model is being loaded: try again in a few seconds.")
        if self.serving.client.failure is not None:
            raise unavailable(self.serving.client.failure)
        return self.serving


def state_of(request: Request) -> ServerState:
    """The state of the server that answers this request; a dependency of the routes."""
    state = request.app.state.server
    assert isinstance(state, ServerState)
    return state
