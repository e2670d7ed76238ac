"""What goes wrong inside a server: each fault ends what it must, says why, and nothing else. See docs/operations.md."""

import asyncio
import errno
import json
import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from deeproot.engine.batch import ForwardBatch
from deeproot.engine.models.decoder import Decoder
from deeproot.engine.runner import Runner
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.engine_transport import EngineEvents
from deeproot.runtime.http_api import lines_of
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.process_transport import ProcessTransport
from deeproot.scheduler.flight import Forward, Pending
from deeproot.scheduler.loop import EngineLoop
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.watch import Watch

from .harness import RunningServer, chat_body, running_server, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def server(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(tiny_options) as running:
        yield running


def error_of(response: httpx.Response) -> str:
    message: str = response.json()["error"]["message"]
    return message


def text_of(server: RunningServer, prompt: str, **fields: object) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(server.url + TEXT, json=body, timeout=60)


def test_logits_that_are_no_numbers_end_their_request_and_leave_nothing_behind(server: RunningServer) -> None:
    """One token's embedding is broken: requests that have it fail, those beside them do not."""
    runner = server.engine.scheduler.runner
    assert isinstance(runner, Runner)
    model = runner.model
    assert isinstance(model, Decoder)
    embedding = model.embedding.weight
    model.head = model.head.clone()  # which was the same tensor: only what goes in is to be broken
    bad, good = "Z" * 150, "y" * 150
    expected = {prompt: text_of(server, prompt).json()["choices"][0]["text"] for prompt in (bad[:-1], good)}
    (token_id,) = set(httpx.post(server.url + "/tokenize", json={"prompt": "Z"}).json()["tokens"])
    sound = embedding[token_id].clone()
    scheduler = server.engine.scheduler
    scheduler.pool.free(scheduler.cache.evict(scheduler.pool.num_pages))
    with torch.inference_mode():
        embedding[token_id] = float("nan")
    try:
        with ThreadPoolExecutor(4) as pool:
            prompts = [bad, good, bad, good]
            answers = list(pool.map(lambda prompt: text_of(server, prompt), prompts))
        assert [answer.status_code for answer in answers] == [500, 200, 500, 200]
        assert "no numbers" in error_of(answers[0])
        assert answers[1].json()["choices"][0]["text"] == expected[good]
        sampled = text_of(server, bad, temperature=1.0, logprobs=2)
        assert sampled.status_code == 500
        streamed = httpx.post(server.url + CHAT, json=chat_body(bad, stream=True), timeout=60)
        assert "no numbers" in streamed.text
    finally:
        with torch.inference_mode():
            embedding[token_id] = sound
    # Nothing that was computed from it may be found in the cache.
    assert text_of(server, bad[:-1]).json()["choices"][0]["text"] == expected[bad[:-1]]
    server.wait_idle()


class RaisingForward:
    """The real forward pass until it is given an error to raise."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.error: Exception | None = None

    def launch(self, batch: ForwardBatch) -> Pending:
        if self.error is not None:
            raise self.error
        return self._forward.launch(batch)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), OSError(errno.EIO, "bad disk")]
)
def test_out_of_memory_in_the_forward_pass(tiny_options: EngineOptions, error: Exception) -> None:
    with running_server(tiny_options, wrap=lambda engine: RaisingForward(engine.scheduler.runner)) as server:
        before = text_of(server, "x" * 100).json()["choices"][0]["text"]
        forward = server.engine.scheduler.runner
        assert isinstance(forward, RaisingForward)
        forward.error = error
        failed = text_of(server, "x" * 100)
        assert failed.status_code == 500
        assert type(error).__name__ in error_of(failed)
        forward.error = None
        assert text_of(server, "x" * 100).json()["choices"][0]["text"] == before
        server.wait_idle()


class RustPanic(BaseException):
    """What pyo3 raises where Rust panics: no Exception."""


@pytest.mark.parametrize("error", [RuntimeError("no such merge"), RustPanic("index out of bounds")])
@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/messages"])
def test_a_tokenizer_that_fails_is_a_500_of_its_own_request(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, error: BaseException, path: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    # What has been tokenised before is remembered.
    text = f"Said to nobody before: {path} {error!r}"
    body = {"prompt": text, "max_tokens": 1} if path == TEXT else chat_body(text, max_tokens=1)
    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "encode", fail)
        assert httpx.post(server.url + path, json=body, timeout=60).status_code == 500
    assert httpx.post(server.url + path, json=body, timeout=60).status_code == 200
    server.wait_idle()


def test_a_detokenizer_that_fails_ends_its_stream_with_an_error(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late enough that the stream has begun: before that the answer would be a plain error."""
    feed, fed = OutputText.feed, []

    def fail_at_the_fortieth(self: OutputText, output: Any) -> Any:
        fed.append(output)
        if len(fed) == 40:
            raise RuntimeError("planted")
        return feed(self, output)

    with monkeypatch.context() as patched:
        patched.setattr(OutputText, "feed", fail_at_the_fortieth)
        body = chat_body("a", stream=True, max_tokens=50, ignore_eos=True)
        lines = [
            line for line in httpx.post(server.url + CHAT, json=body, timeout=60).text.split("\n\n") if line
        ]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "internal_error"
    server.wait_idle()


def test_a_full_disk_loses_stored_responses_and_nothing_else(
    tiny_options: EngineOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite is told how large the file may become: what it then says is what it says of a full disk."""
    options = ServerOptions(port=0, response_store=tmp_path / "responses.sqlite")
    with running_server(tiny_options, options) as server:
        ask = {"input": "x" * 200, "max_output_tokens": 2}
        first = httpx.post(server.url + "/v1/responses", json=ask, timeout=60)
        assert httpx.get(f"{server.url}/v1/responses/{first.json()['id']}").status_code == 200
        database = server.state.responses._store._db
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        answers = [httpx.post(server.url + "/v1/responses", json=ask, timeout=60) for _ in range(30)]
        assert {answer.status_code for answer in answers} == {200}
        lost = httpx.get(f"{server.url}/v1/responses/{answers[-1].json()['id']}")
        assert lost.status_code == 404
        assert "full" in "".join(record.getMessage() for record in caplog.records)
        follow_up = httpx.post(
            server.url + "/v1/responses",
            json={**ask, "previous_response_id": answers[-1].json()["id"]},
            timeout=60,
        )
        assert follow_up.status_code == 404
        assert text_of(server, "a").status_code == 200


def test_no_room_for_the_engines_sockets(
    tiny_options: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    transport = ProcessTransport(tiny_options, "error", "text", lambda *_: None)
    reasons: list[str] = []
    done = threading.Event()

    def cannot_start(reason: str) -> None:
        reasons.append(reason)
        done.set()

    async def start() -> None:
        transport.start(EngineEvents(lambda _: None, lambda _: None, reasons.append, cannot_start))

    asyncio.run(start())
    assert done.wait(60)
    assert len(reasons) == 1
    assert "No space left" in reasons[0]
    assert transport.close(10)


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
def test_a_clock_that_jumps_changes_nothing(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """Deadlines, limits and latencies are by a clock that cannot be set."""
    real = time.time
    body = chat_body("a", stream=True, max_tokens=40, ignore_eos=True, temperature=0)
    with monkeypatch.context() as patched:
        headers = {"X-Deeproot-Timeout": "100"}
        with httpx.stream("POST", server.url + CHAT, json=body, headers=headers, timeout=60) as response:
            lines = lines_of(response.iter_bytes())
            next(lines)
            patched.setattr(time, "time", lambda: real() + jump_s)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "error" not in rest[-2]
    duration = server.metrics()["deeproot_request_duration_seconds_sum"]
    assert 0 <= duration < 1000


class StandingForward:
    """The real forward pass, which waits for leave."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.may_go_on = threading.Event()
        self.stands = threading.Event()

    def launch(self, batch: ForwardBatch) -> Pending:
        self.stands.set()
        assert self.may_go_on.wait(60)
        return self._forward.launch(batch)


def test_a_step_that_does_not_end_is_named(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = server.engine.scheduler
    real = scheduler.runner
    standing = StandingForward(real)
    scheduler.runner = standing
    heard: list[object] = []
    loop = EngineLoop(scheduler, heard.extend)
    ages: list[float] = []
    watch = Watch(loop, 0.05, ages.append)
    watch.look()
    assert ages == [0.0]
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        ids = b"\x05\0\0\0" * 3
        loop.submit(AddRequest("the-culprit", ids, SamplingParams(max_tokens=1, temperature=0, seed=0)))
        assert standing.stands.wait(60)
        wait_until(lambda: loop.step_age_s() > 0.05)
        with caplog.at_level(logging.ERROR, logger="deeproot.scheduler.watch"):
            watch.look()
            (record,) = [r for r in caplog.records if r.name == "deeproot.scheduler.watch"]
            assert "the-culprit" in record.getMessage()
            assert "kill -9" in record.getMessage()
            watch.look()  # not again so soon
            assert len([r for r in caplog.records if r.name == "deeproot.scheduler.watch"]) == 1
    finally:
        standing.may_go_on.set()
        wait_until(lambda: bool(heard))
        loop.stop()
        thread.join(60)
        scheduler.runner = real
    assert ages[1] >= 0.05
    watch.look()
    assert ages[-1] == 0.0
