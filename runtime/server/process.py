"""The process around the application: from loading the model to the last signal."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import uvicorn
import uvloop

from deeproot.runtime.model_search import name_of
from deeproot.runtime.options import EngineOptions, ServerOptions, SetupError
from deeproot.runtime.process_transport import ENGINE_MODULE
from deeproot.runtime.server.app import create_app
from deeproot.runtime.server.http_protocol import CuttableProtocol
from deeproot.runtime.server.startup import start_serving
from deeproot.runtime.server.state import ServerState

logger = logging.getLogger(__name__)

_ENDING_S = 1.0
"""How long aborted requests may take to send their endings, and then the engine to finish its step."""


def serve_until_signal(
    engine: EngineOptions,
    server: ServerOptions,
    listener: socket.socket,
    *,
    engine_module: str = ENGINE_MODULE,
) -> NoReturn:
    """Load, serve, and end this process: with 0 after a signal, with 1 if the model cannot be loaded.

    `engine_module`: what the engine's process runs.
    """
    state = ServerState(
        options=server, model_names=server.served_model_names or (name_of(Path(engine.model)),)
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(ServerProcess(engine, state, listener, engine_module).run())
        # Threads that still compute (a long step, loading) cannot be interrupted and are not worth waiting for.
        _leave(code)


class ServerProcess:
    """Loads the model while already answering `/health`, serves, and ends in order."""

    def __init__(
        self, engine: EngineOptions, state: ServerState, listener: socket.socket, engine_module: str
    ) -> None:
        self._engine = engine
        self._engine_module = engine_module
        self._state = state
        self._listener = listener
        timeout = state.options.shutdown_timeout_s
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                create_app(state),
                lifespan="off",
                http=CuttableProtocol,
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                server_header=False,
                timeout_keep_alive=state.options.limits.keep_alive_timeout_s,
                timeout_graceful_shutdown=math.ceil(timeout + _ENDING_S),
            )
        )
        self._exit_code = 0
        self._draining: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Serve until a signal or a failure to load; returns the exit code."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal, signum)
        loading = asyncio.create_task(self._load())
        await self._uvicorn.serve(sockets=[self._listener])
        loading.cancel()
        serving = self._state.serving
        if serving is not None:
            serving.client.close(_ENDING_S)
        self._state.close()
        return self._exit_code

    async def _load(self) -> None:
        try:
            await start_serving(self._state, self._engine, self._engine_module)
        except SetupError as error:
            self._fail(str(error))
        except Exception as error:  # whatever it is, the user is told in one line and the server ends
            logger.debug("loading failed", exc_info=True)
            self._fail(f"cannot load {self._engine.model}: {type(error).__name__}: {error}")
        else:
            print(ready_line(self._state, self._listener), flush=True)

    def _fail(self, message: str) -> None:
        print(f"deeproot: error: {message}", file=sys.stderr, flush=True)
        self._exit_code = 1
        self._uvicorn.should_exit = True

    def _on_signal(self, signum: int) -> None:
        if self._state.closing is not None:
            _leave(128 + signum)
        self._state.closing = "The server is shutting down."
        self._uvicorn.should_exit = True
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Give requests in flight their time, then end them."""
        serving, timeout = self._state.serving, self._state.options.shutdown_timeout_s
        if serving is None or not serving.client.num_inflight:
            return
        logger.info("%d requests in flight get %g s to end", serving.client.num_inflight, timeout)
        await asyncio.sleep(timeout)
        serving.client.abort_all("The server is shutting down: the request was ended before it was complete.")


class _Uvicorn(uvicorn.Server):
    """Leaves signals to ServerProcess: uvicorn would end the process by the signal, not with code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def ready_line(state: ServerState, listener: socket.socket) -> str:
    """The one line that says that the server can be used, and how."""
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    key = "-H 'Authorization: Bearer YOUR_KEY' " if state.options.api_keys else ""
    body = f'{{"model": "{state.model_names[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return (
        f"Ready on {address} - try: curl {address}/v1/chat/completions {key}"
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
