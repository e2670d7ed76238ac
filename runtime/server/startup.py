"""From engine options to a server that is ready."""

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from deeproot.runtime.client import EngineClient
from deeproot.runtime.engine_setup import LoadedEngine, load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.progress import loading_progress
from deeproot.runtime.server.state import ServerState, Serving
from deeproot.scheduler.messages import TokenOutput, Usage

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def start_serving(state: ServerState, options: EngineOptions) -> None:
    """Load and warm the engine in a thread of its own, then open the server for requests.

    Raises SetupError.
    """

    def load() -> LoadedEngine:
        with loading_progress(state.model_names[0]) as on_progress:
            return load_engine(options, on_progress)

    open_for_requests(state, await _in_daemon_thread(load), options.seed)


def open_for_requests(state: ServerState, engine: LoadedEngine, seed: int) -> None:
    """Start the engine's thread and let requests in. Runs in the event loop."""
    max_inflight = engine.scheduler.config.max_num_seqs + state.options.max_queued_requests

    def account(last: TokenOutput) -> None:
        state.metrics.count_tokens(last)
        if last.usage is not None:
            log_end(last, last.usage)

    client = EngineClient(ThreadTransport(engine.scheduler), max_inflight, account)
    client.start()
    state.metrics.watch_engine(client.stats)
    state.serving = Serving(engine, client, random.Random(seed))


def log_end(last: TokenOutput, usage: Usage) -> None:
    """One line for every request that the engine has ended, also where the client has left."""
    logger.info(
        "%s: %s, prompt %d (cached %d), output %d",
        last.rid,
        last.finish_reason,
        usage.prompt,
        usage.cached,
        usage.output,
    )


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """The result of `work`, run in a thread that does not keep the process from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def target() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=target, name="deeproot-load", daemon=True).start()
    return await asyncio.wrap_future(future)
