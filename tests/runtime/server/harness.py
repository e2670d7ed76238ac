"""A real server on a free port in a thread of the test's process, so that a test can look into its engine."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import httpx
import numpy as np
import uvicorn

from deeproot.engine.batch import ForwardBatch, Sampled
from deeproot.engine.radix_checks import InvariantError
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.engine_setup import LoadedEngine, load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.server.app import create_app
from deeproot.runtime.server.http_protocol import CuttableProtocol
from deeproot.runtime.server.serve import bind
from deeproot.runtime.server.startup import open_for_requests
from deeproot.runtime.server.state import ServerState
from deeproot.runtime.speech import Texts
from deeproot.scheduler.flight import Forward, Pending
from deeproot.scheduler.invariants import check_idle


@dataclass(frozen=True)
class Known:
    """The result of a step that has been taken already."""

    sampled: Sampled

    def result(self) -> Sampled:
        return self.sampled


class ScriptedForward:
    """Runs the real forward pass, and then has its say about requests with a known seed.

    A random model writes no tool calls; this makes one write whatever a test needs, while scheduler, pages, cache and
    server are the real ones. Use each seed once; a request with several replies gets them one after another.
    """

    def __init__(self, forward: Forward, tokenizer: Tokenizer) -> None:
        self._forward = forward
        self._tokenizer = tokenizer
        self._scripts: dict[int, list[list[int]]] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Where the reply that is being written began, and where it is."""

    def will_say(self, *texts: str, end: str = "<|im_end|>") -> int:
        """The seed with which a request is answered with `texts`, each with an end token."""
        seed = 1_000_000 + len(self._scripts)
        end_id = self._tokenizer.id_of(end)
        assert end_id is not None
        self._scripts[seed] = [
            [*self._tokenizer.encode(text, parse_special=False).tolist(), end_id] for text in texts
        ]
        return seed

    def launch(self, batch: ForwardBatch) -> Pending:
        sampled = self._forward.launch(batch).result()
        tokens = sampled.token_ids.copy()
        seeds, positions = batch.sampling.seeds.tolist(), batch.sampling.positions.tolist()
        for i, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
            if seed in self._scripts:
                start, last = self._places.get(seed, (position, position - 1))
                if position != last + 1:  # another reply has begun
                    self._scripts[seed].pop(0)
                    start = position
                self._places[seed] = (start, position)
                tokens[i] = self._scripts[seed][0][position - start]
        logprobs, wanted = sampled.logprobs, batch.sampling.num_logprobs
        if logprobs is not None and wanted is not None:
            # The names of the scripted tokens; the values stay those of what the model had sampled.
            logprobs = replace(logprobs, token_ids=tokens[wanted >= 0].astype(np.int64))
        return Known(replace(sampled, token_ids=tokens, logprobs=logprobs))


class SlowForward:
    """The real forward pass with a pause before each, so that a test can act while a request runs."""

    def __init__(self, forward: Forward, seconds: float) -> None:
        self._forward = forward
        self._seconds = seconds

    def launch(self, batch: ForwardBatch) -> Pending:
        time.sleep(self._seconds)
        return self._forward.launch(batch)


class BrokenForward:
    """The real forward pass until `broken` is set; then it fails."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.broken = False

    def launch(self, batch: ForwardBatch) -> Pending:
        if self.broken:
            raise RuntimeError("no memory left")
        return self._forward.launch(batch)


@dataclass
class RunningServer:
    """A server that answers at `url`."""

    url: str
    state: ServerState
    engine: LoadedEngine

    def metrics(self) -> dict[str, float]:
        """What /metrics says, by name and labels."""
        return parse_metrics(httpx.get(f"{self.url}/metrics").text)

    def wait_idle(self, timeout_s: float = 20.0) -> None:
        """Return when no request is left, with every invariant of the engine checked; fail after a while.

        The engine's thread may still be answering a question: what counts is what holds when it is at rest.
        """
        serving = self.state.serving
        assert serving is not None
        deadline = time.monotonic() + timeout_s
        wait_until(lambda: not serving.client.num_inflight, timeout_s)
        while True:
            try:
                return check_idle(self.engine.scheduler)
            except InvariantError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Return when `condition` holds; fail if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def parse_metrics(text: str) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


@contextlib.contextmanager
def running_server(
    engine_options: EngineOptions,
    server_options: ServerOptions | None = None,
    wrap: Callable[[LoadedEngine], Forward] | None = None,
) -> Iterator[RunningServer]:
    """Serve a model on a free port. `wrap` makes the forward pass from the loaded engine's own."""
    options = server_options or ServerOptions(port=0)
    engine = load_engine(engine_options)
    if wrap is not None:
        engine.scheduler.runner = wrap(engine)
    state = ServerState(options=options, model_names=options.served_model_names or ("tiny",))
    listener = bind(options)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(state), lifespan="off", log_config=None, access_log=False, http=CuttableProtocol
        )
    )

    async def serve() -> None:
        transport = ThreadTransport(engine.scheduler, engine.info)
        await open_for_requests(state, transport, texts_of(engine), engine_options)
        await server.serve(sockets=[listener])
        assert state.serving is not None
        assert state.serving.client.close(10.0), "the engine did not stop"

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        wait_until(lambda: server.started and state.serving is not None)
        yield RunningServer(f"http://127.0.0.1:{listener_port(listener)}", state, engine)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
        state.close()
        engine.speech.processes.close()


async def texts_of(engine: LoadedEngine) -> Texts:
    """The texts of an engine that is loaded in this process."""
    speech = engine.speech
    return Texts(speech.assets, speech.template, speech.reply_format, speech.processes)


def listener_port(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def chat_body(text: str, **fields: object) -> dict[str, object]:
    """A chat request with one user message."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def tokens_accounted(metrics: Mapping[str, float]) -> bool:
    """Whether cached and computed tokens add up to the prompts'."""
    cached, computed = metrics["deeproot_cached_tokens_total"], metrics["deeproot_computed_tokens_total"]
    return cached + computed == metrics["deeproot_prompt_tokens_total"]
