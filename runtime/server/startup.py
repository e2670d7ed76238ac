"""From engine options to a server that is ready."""

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from deeproot.runtime.client import EngineClient
from deeproot.runtime.continuations import make_continuations
from deeproot.runtime.engine_messages import EngineInfo
from deeproot.runtime.engine_transport import EngineTransport
from deeproot.runtime.explain.explainer import Explainer
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.process_transport import ENGINE_MODULE, ProcessTransport
from deeproot.runtime.progress import loading_progress
from deeproot.runtime.server.declaring import declare, warm_declared
from deeproot.runtime.server.state import ServerState, Serving
from deeproot.runtime.speech import Texts, load_texts, make_speech
from deeproot.scheduler.messages import AddRequest, TokenOutput, Usage

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ENGINE_ENDS_S = 1.0


async def start_serving(
    state: ServerState, options: EngineOptions, engine_module: str = ENGINE_MODULE
) -> None:
    """Start the engine's process and read the model's texts meanwhile, then open the server for requests.

    Raises SetupError.
    """
    with loading_progress(state.model_names[0]) as on_loading:
        said = state.options
        transport = ProcessTransport(
            options,
            said.log_level,
            said.log_format,
            on_loading,
            said.limits.stuck_after_s,
            engine_module,
        )
        texts = asyncio.create_task(_in_daemon_thread(lambda: load_texts(options)))
        try:
            await open_for_requests(state, transport, texts, options)
        except BaseException:  # cancelled, too: nothing that was started may stay
            texts.cancel()
            transport.close(_ENGINE_ENDS_S)
            raise


async def open_for_requests(
    state: ServerState, transport: EngineTransport, texts: Awaitable[Texts], options: EngineOptions
) -> None:
    """Start an engine and let requests in when it and the model's texts are there. Raises SetupError."""

    def account(last: TokenOutput, request: AddRequest) -> None:
        state.metrics.count_tokens(last)
        if state.serving is not None:
            state.serving.explainer.ended(last)
        if last.usage is not None:
            state.limits.spend(request.tenant, last.usage)
            log_end(last, last.usage)

    def refresh(info: EngineInfo) -> None:
        """An engine that was started anew may have found another amount of memory."""
        if state.serving is not None:
            state.serving.speech = make_speech(known, info)
            warm_declared(state.serving)

    max_inflight = options.max_num_seqs + state.options.max_queued_requests
    client = EngineClient(transport, max_inflight, account, refresh)
    client.start()
    known = await texts
    info = await client.wait_up()
    state.metrics.watch_engine(client)
    continuations = make_continuations(
        known.assets.tokenizer, known.template, known.reply_format, options.continuation_memory_bytes
    )
    explainer = Explainer(known.assets.tokenizer, known.template, state.options.explain_memory_bytes)
    speech = make_speech(known, info)
    serving = Serving(speech, client, random.Random(options.seed), continuations, explainer)
    if state.options.shared_prefixes is not None:
        await asyncio.to_thread(declare, serving, state.options.shared_prefixes)
    state.serving = serving
    warm_declared(serving)


def log_end(last: TokenOutput, usage: Usage) -> None:
    """One line for every request that the engine has ended, also where the client has left."""
    logger.info(
        "%s: %s, prompt %d (cached %d), output %d",
        last.rid,
        last.finish_reason,
        usage.prompt,
        usage.cached,
        usage.output,
        extra={
            "fields": {
                "rid": last.rid,
                "finish_reason": last.finish_reason,
                **{name: getattr(usage, name) for name in usage.__struct_fields__},
            }
        },
    )


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """The result of `work`, run in a thread that does not keep the process from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def target() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised where the result is awaited
            future.set_exception(error)

    threading.Thread(target=target, name="deeproot-load", daemon=True).start()
    return await asyncio.wrap_future(future)
