"""The engine in a process of its own: it dies, the server dies, in any order, and nothing is left behind."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from deeproot.runtime.http_api import lines_of

from ..tiny_model import write_tiny_model
from .harness import chat_body, parse_metrics, wait_until
from .process import ServeProcess, serve

CHAT = "/v1/chat/completions"
TIME_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=50_000)
    size = ("--kv-cache-memory-bytes", "32MiB", "--max-num-seqs", "8")
    return ["--model", str(folder), "--load-format", "dummy", "--dtype", "float32", "--device", "cpu", *size]


@pytest.fixture
def server(flags: list[str]) -> Iterator[ServeProcess]:
    with serve(*flags) as process:
        yield process


def engine_of(server: ServeProcess) -> int:
    """Pid of the server's engine."""
    (pid,) = engines_of(server.pid)
    return pid


def engines_of(pid: int) -> list[int]:
    """Engines that a process has started; it has other children too."""
    tasks = Path(f"/proc/{pid}/task")
    children = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    return [child for child in children if b"deeproot.runtime.engine_process" in command_of(child)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def is_gone(pid: int) -> bool:
    """Ended, and not a zombie of a process that lives."""
    return not Path(f"/proc/{pid}").exists()


def socket_folders(pid: int) -> set[str]:
    """Folders of sockets that a process has open."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            continue
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {
        str(Path(row[7]).parent)
        for row in rows
        if len(row) > 7 and row[6] in inodes and row[7].startswith("/")
    }


def metrics(server: ServeProcess) -> dict[str, float]:
    return parse_metrics(httpx.get(f"{server.url}/metrics").text)


def ask(server: ServeProcess, text: str = "x", **fields: object) -> httpx.Response:
    return httpx.post(f"{server.url}{CHAT}", json=chat_body(text, **fields), timeout=TIME_LIMIT_S)


def is_ready(server: ServeProcess) -> bool:
    return httpx.get(f"{server.url}/ready").status_code == 200


class Stream:
    """A long streamed reply that is read in a thread."""

    def __init__(self, server: ServeProcess) -> None:
        self.lines: list[str] = []
        self._body = chat_body("x", stream=True, max_tokens=40_000, ignore_eos=True)
        self._url = f"{server.url}{CHAT}"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_until(lambda: len(self.lines) > 3, TIME_LIMIT_S)

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=TIME_LIMIT_S) as response:
                self.lines += (line for line in lines_of(response.iter_bytes()) if line)
        except httpx.TransportError:
            self.lines.append("broken")

    def end(self) -> list[str]:
        self._thread.join(TIME_LIMIT_S)
        assert not self._thread.is_alive(), "the stream does not end"
        return self.lines


def test_the_engine_dies_in_a_stream_and_a_new_one_serves(server: ServeProcess) -> None:
    assert ask(server, "y" * 200, max_tokens=2).status_code == 200
    assert (
        ask(server, "y" * 200, max_tokens=2).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    )
    before, stream = engine_of(server), Stream(server)
    os.kill(before, signal.SIGKILL)
    lines = stream.end()
    assert any("error" in line and "signal 9" in line for line in lines[-2:]), lines[-3:]
    answer = httpx.get(f"{server.url}/ready")
    if answer.status_code != 200:  # the new engine may be there already
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
        assert ask(server).status_code == 503
    wait_until(lambda: is_ready(server), TIME_LIMIT_S)
    assert is_gone(before)
    assert engine_of(server) != before
    state = metrics(server)
    assert state["deeproot_engine_restarts_total"] == 1
    assert state['deeproot_pages{state="cached"}'] == 0
    assert state["deeproot_requests_running"] == 0
    reply = ask(server, "y" * 200, max_tokens=2)
    assert reply.status_code == 200
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_questions_cross_and_fail_with_the_engine(server: ServeProcess) -> None:
    def probe() -> httpx.Response:
        body = {"prompts": [{"prompt": "z" * 100}]}
        return httpx.post(f"{server.url}/v1/cache/probe", json=body, timeout=TIME_LIMIT_S)

    assert probe().json()["prompts"][0]["cached_tokens"] == 0
    done = httpx.post(f"{server.url}/v1/completions", json={"prompt": "z" * 100, "max_tokens": 1})
    assert done.status_code == 200
    assert probe().json()["prompts"][0]["cached_tokens"] == 100
    engine = engine_of(server)
    os.kill(engine, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(probe)
        time.sleep(0.2)  # so that it is asked before; a 503 either way
        os.kill(engine, signal.SIGKILL)
        answer = asked.result(TIME_LIMIT_S)
    assert answer.status_code == 503
    wait_until(lambda: is_ready(server), TIME_LIMIT_S)
    assert probe().json()["prompts"][0]["cached_tokens"] == 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_and_the_engine_leaves(server: ServeProcess, signum: signal.Signals) -> None:
    engine, folders = engine_of(server), socket_folders(server.pid)
    assert folders
    server.signal(signum)
    server.wait(TIME_LIMIT_S)
    wait_until(lambda: is_gone(engine), TIME_LIMIT_S)
    wait_until(lambda: not any(Path(folder).exists() for folder in folders), TIME_LIMIT_S)


def test_the_server_is_killed_in_a_stream(server: ServeProcess) -> None:
    engine, stream = engine_of(server), Stream(server)
    server.signal(signal.SIGKILL)
    stream.end()
    wait_until(lambda: is_gone(engine), TIME_LIMIT_S)


def test_the_engine_and_then_the_server_are_killed(server: ServeProcess) -> None:
    first = engine_of(server)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: engines_of(server.pid) not in ([first], []), TIME_LIMIT_S)
    second = engine_of(server)  # it is being loaded
    server.signal(signal.SIGKILL)
    server.wait(TIME_LIMIT_S)
    wait_until(lambda: is_gone(first) and is_gone(second), TIME_LIMIT_S)


def test_the_server_is_told_to_end_while_the_engine_loads(flags: list[str]) -> None:
    with serve(*flags, ready=False) as server:
        wait_until(lambda: bool(engines_of(server.pid)), TIME_LIMIT_S)
        engine = engine_of(server)
        wait_until(lambda: not _refuses(server), TIME_LIMIT_S)
        server.signal(signal.SIGTERM)
        assert server.wait(TIME_LIMIT_S) == 0
        wait_until(lambda: is_gone(engine), TIME_LIMIT_S)


def _refuses(server: ServeProcess) -> bool:
    try:
        return httpx.get(f"{server.url}/health").status_code != 200
    except httpx.TransportError:
        return True


def test_a_server_that_stands_still_makes_the_engine_wait_and_loses_nothing(server: ServeProcess) -> None:
    whole = ask(server, max_tokens=3000, ignore_eos=True, temperature=0).json()["choices"][0]["message"][
        "content"
    ]
    engine, pieces = engine_of(server), []
    body = chat_body("x", stream=True, max_tokens=3000, ignore_eos=True, temperature=0)
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=TIME_LIMIT_S) as response:
        lines = lines_of(response.iter_bytes())
        pieces.append(next(lines))
        server.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: is_idle(engine), TIME_LIMIT_S)
        finally:
            server.signal(signal.SIGCONT)
        pieces += lines
    assert content_of(pieces) == whole


def is_idle(pid: int) -> bool:
    """Whether a process has used no processor time for a while."""

    def used() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = used()
    time.sleep(1.0)
    return used() - before <= 2


def content_of(lines: list[str]) -> str:
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


def test_requests_go_on_after_many_deaths(server: ServeProcess) -> None:
    for deaths in (1, 2):
        os.kill(engine_of(server), signal.SIGKILL)
        wait_until(lambda n=deaths: metrics(server)["deeproot_engine_restarts_total"] == n, TIME_LIMIT_S)  # type: ignore[misc]
        assert ask(server, max_tokens=2).status_code == 200


def test_an_engine_that_stands_still_is_named_and_goes_on(flags: list[str]) -> None:
    with serve(*flags, "--stuck-after", "1.5") as server:
        engine, stream = engine_of(server), Stream(server)
        os.kill(engine, signal.SIGSTOP)
        try:
            wait_until(lambda: metrics(server)["deeproot_engine_silence_seconds"] > 2, TIME_LIMIT_S)
            assert httpx.get(f"{server.url}/health").status_code == 200
            wait_until(lambda: any("has said nothing" in line for line in server.stderr), TIME_LIMIT_S)
            assert any(f"kill -9 {engine}" in line for line in server.stderr)
        finally:
            os.kill(engine, signal.SIGCONT)
        before = len(stream.lines)
        wait_until(lambda: len(stream.lines) > before, TIME_LIMIT_S)
        wait_until(lambda: metrics(server)["deeproot_engine_silence_seconds"] < 1.5, TIME_LIMIT_S)
        os.kill(engine, signal.SIGKILL)
        assert "error" in stream.end()[-2]
