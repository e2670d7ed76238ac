"""Start, signals and exit codes of the server process."""

import json
import shlex
import signal
import socket
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import httpx
import pytest

from deeproot.runtime.http_api import lines_of

from ..tiny_model import write_tiny_model
from .harness import chat_body, wait_until
from .process import ServeProcess, run_command, serve

CHAT = "/v1/chat/completions"
ENDLESS = {"max_tokens": 40_000, "ignore_eos": True}
MARGIN_S = 8.0
"""For the process to end on a loaded machine, beyond the time that it is given."""


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny model with so long a window that a request can run for minutes."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "long", max_position_embeddings=50_000)
    size = ("--kv-cache-memory-bytes", "32MiB", "--max-num-seqs", "8")
    return ["--model", str(folder), "--load-format", "dummy", "--dtype", "float32", "--device", "cpu", *size]


def test_it_says_when_it_is_ready_in_one_line_and_ends_at_once_when_idle(flags: list[str]) -> None:
    with serve(*flags, "--served-model-name", "first", "second", "--shutdown-timeout", "600") as server:
        words = shlex.split(server.stdout[0])
        body = words[words.index("-d") + 1]
        address = next(word for word in words if word.endswith(CHAT))
        answer = httpx.post(address, content=json.dumps({**json.loads(body), "max_tokens": 3}))
        assert answer.status_code == 200
        assert answer.json()["model"] == "first"
        second = httpx.post(address, json=chat_body("x", model="second", max_tokens=3)).json()
        assert second["model"] == "second"
        server.signal(signal.SIGINT)
        assert server.wait(MARGIN_S) == 0
        assert len(server.stdout) == 1
        assert not any("Traceback" in line for line in server.stderr)


class Asking:
    """A chat request in a thread, whole or streamed, and what came of it."""

    def __init__(self, server: ServeProcess, **fields: object) -> None:
        self.status = 0
        self.lines: list[str] = []
        self._url = server.url + CHAT
        self._body = chat_body("x", **fields)
        self.broken = False
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
                self.status = response.status_code
                for line in lines_of(
                    chain(response.iter_bytes(), [b"\n"])
                ):  # a whole answer does not end its line
                    self.lines.append(line)
        except httpx.TransportError:
            self.broken = True

    def result(self) -> list[str]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return [line for line in self.lines if line]


def running(server: ServeProcess) -> bool:
    return "deeproot_requests_running 1.0" in httpx.get(f"{server.url}/metrics").text


def test_sigterm_gives_requests_their_time_and_then_ends_them(flags: list[str]) -> None:
    with serve(*flags, "--shutdown-timeout", "4") as server:
        endless = Asking(server, stream=True, **ENDLESS)
        wait_until(lambda: running(server))
        whole = Asking(server, **ENDLESS)
        brief = Asking(server, max_tokens=100, ignore_eos=True)
        wait_until(lambda: "deeproot_requests_running 3.0" in httpx.get(f"{server.url}/metrics").text)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait(4 + MARGIN_S) == 0
        assert time.monotonic() - began >= 4

        assert json.loads(brief.result()[0])["usage"]["completion_tokens"] == 100
        lines = endless.result()
        assert endless.status == 200
        assert lines[-1] == "data: [DONE]"
        assert "shutting down" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
        assert len(lines) > 10
        assert whole.status == 503
        assert "shutting down" in json.loads(whole.result()[0])["error"]["message"]
        assert not any("Traceback" in line for line in server.stderr), server.stderr


def test_sigterm_takes_no_more_requests(flags: list[str]) -> None:
    with serve(*flags, "--shutdown-timeout", "3") as server, httpx.Client(base_url=server.url) as kept_alive:
        assert kept_alive.get("/health").status_code == 200
        endless = Asking(server, stream=True, **ENDLESS)
        wait_until(lambda: running(server))
        server.signal(signal.SIGTERM)
        wait_until(lambda: refused(server))
        server.signal(signal.SIGTERM)
        assert server.wait(MARGIN_S) == 128 + signal.SIGTERM
        endless.result()
        assert endless.broken


def test_an_idle_connection_is_closed_after_the_time_that_was_set(flags: list[str]) -> None:
    with serve(*flags, "--keep-alive-timeout", "1", ready=False) as server:
        wait_until(lambda: answers(server), 60)
        with socket.create_connection(
            ("127.0.0.1", int(server.url.rpartition(":")[2])), MARGIN_S
        ) as connection:
            for _ in range(2):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            assert connection.recv(4096) == b""


def refused(server: ServeProcess) -> bool:
    try:
        return httpx.post(server.url + CHAT, json=chat_body("x", max_tokens=1)).status_code == 503
    except httpx.TransportError:
        return True


def test_sigterm_while_loading(smollm2_path: Path) -> None:
    with serve("--model", str(smollm2_path), "--dtype", "float32", ready=False) as server:
        wait_until(lambda: answers(server), 60)
        server.signal(signal.SIGTERM)
        assert server.wait(MARGIN_S) == 0
        assert server.stdout == []


def answers(server: ServeProcess) -> bool:
    try:
        return httpx.get(f"{server.url}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_port_in_use(flags: list[str], taken_port: int) -> None:
    done = run_command("serve", *flags, "--port", str(taken_port))
    assert done.returncode == 1
    one_line(done.stderr, str(taken_port), "--port")


def test_a_model_that_cannot_be_used(tmp_path: Path, flags: list[str]) -> None:
    missing = run_command("serve", "--model", str(tmp_path / "none.gguf"))
    assert missing.returncode == 1
    one_line(missing.stderr, "none.gguf", "does not exist")

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00 and no more")
    cut = run_command("serve", "--model", str(broken), "--port", "0")
    assert cut.returncode == 1
    one_line(cut.stderr, "broken.gguf")

    unfit = run_command("serve", *flags, "--port", "0", "--max-model-len", "60000")
    assert unfit.returncode == 1
    one_line(unfit.stderr, "60000", "50000")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], ["--model"]),
        (["serve", "--model", "x", "--port", "70000"], ["--port", "65535"]),
        (["serve", "--model", "x", "--page-size", "48"], ["48", "64"]),
        (["serve", "--model", "x", "--tensor-parallel-size", "2"], ["--tensor-parallel-size"]),
        (["serve", "--model", "x", "--kv-cache-memory-bytes", "much"], ["much", "4GiB"]),
        (["serve", "--model", "x", "--max-num-seqs", "0"], ["--max-num-seqs", "at least 1"]),
        (["serve", "--model", "x", "--dtype", "int3"], ["int3"]),
        (["bake"], ["bake"]),
    ],
)
def test_bad_flags_are_one_line_and_code_2(arguments: list[str], words: list[str]) -> None:
    done = run_command(*arguments)
    assert done.returncode == 2
    one_line(done.stderr, *words)


def one_line(text: str, *words: str) -> None:
    """There is one line, progress apart, and it has the words."""
    lines = [line for line in text.splitlines() if line and not line.startswith("Loading ")]
    assert len(lines) == 1, text
    assert all(word in lines[0] for word in words), text
