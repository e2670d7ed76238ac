"""`deeproot chat`, through pipes and on a terminal."""

import contextlib
import io
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from deeproot.runtime.chat_local import LocalChat
from deeproot.runtime.chat_remote import RemoteChat
from deeproot.runtime.chat_reply import ChatFailed, ChatPartner, Message, Reply
from deeproot.runtime.chat_terminal import Conversation, answer_pipe
from deeproot.runtime.cli import main
from deeproot.runtime.options import EngineOptions, ServerOptions, SetupError
from deeproot.runtime.sampling_options import SamplingOptions

from .server.harness import RunningServer, SlowForward, running_server, wait_until

CTRL_C, CTRL_D = b"\x03", b"\x04"
SAMPLING = SamplingOptions(max_tokens=20, temperature=0)


@pytest.fixture(scope="module")
def options(tiny_model: Path) -> EngineOptions:
    return EngineOptions(
        model=str(tiny_model), load_format="dummy", dtype="float32", device="cpu", kv_cache_memory_bytes=2**21
    )


@pytest.fixture(scope="module")
def server(options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(options, ServerOptions(port=0, api_keys=("key",))) as running:
        yield running


@pytest.fixture(params=["local", "remote"])
def partner(
    request: pytest.FixtureRequest, options: EngineOptions, server: RunningServer
) -> Iterator[ChatPartner]:
    if request.param == "local":
        with LocalChat(options, SAMPLING, lambda done, total: None) as local:
            yield local
    else:
        with RemoteChat(f"{server.url}/v1/", "key", SAMPLING) as remote:
            yield remote


def test_a_conversation_goes_on(partner: ChatPartner) -> None:
    output, notes = io.StringIO(), io.StringIO()
    conversation = Conversation(partner, "Be brief.", output, notes)
    conversation.ask("one")
    conversation.ask("two")
    assert [message["role"] for message in conversation.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    replies = [message["content"] for message in conversation.messages if message["role"] == "assistant"]
    assert output.getvalue() == "".join(f"{reply}\n" for reply in replies)
    first, second = notes.getvalue().splitlines()
    assert "20 tokens" in first
    assert "tokens/s" in first
    # The second turn finds the first in the cache.
    cached = int(second.split(", ")[-1].split()[0])
    assert cached > 40


def test_local_and_remote_say_the_same(options: EngineOptions, server: RunningServer) -> None:
    texts = []
    with (
        LocalChat(options, SAMPLING, lambda done, total: None) as local,
        RemoteChat(server.url, "key", SAMPLING) as remote,
    ):
        for partner in (local, remote):
            reply = Reply()
            texts.append("".join(partner.stream([{"role": "user", "content": "hi"}], reply)))
            assert reply.output_tokens == 20
            assert reply.prompt_tokens > 10
    assert texts[0] == texts[1] != ""


class Interrupted:
    """Says one word, then Ctrl-C is pressed."""

    name = "interrupted"
    closed = False

    def stream(self, messages: Sequence[Message], reply: Reply) -> Generator[str, None, None]:
        try:
            yield "one"
            raise KeyboardInterrupt
        finally:
            self.closed = True


def test_ctrl_c_stops_a_reply_and_keeps_what_was_said() -> None:
    partner, notes = Interrupted(), io.StringIO()
    conversation = Conversation(partner, "", io.StringIO(), notes)
    conversation.ask("hi")
    assert partner.closed
    assert conversation.messages[-1] == {"role": "assistant", "content": "one"}
    assert "stopped" in notes.getvalue()


def test_leaving_a_remote_reply_frees_its_request(server: RunningServer) -> None:
    endless = SamplingOptions(max_tokens=1500)
    with RemoteChat(server.url, "key", endless) as remote:
        stream = remote.stream([{"role": "user", "content": "hi"}], Reply())
        next(stream)
        stream.close()
        server.wait_idle()


def test_a_failed_reply_leaves_the_conversation_as_it_was(partner: ChatPartner) -> None:
    conversation = Conversation(partner, "", io.StringIO(), io.StringIO())
    with pytest.raises(ChatFailed, match="context window"):
        conversation.ask("x" * 5000)
    assert conversation.messages == []


def test_an_empty_pipe_is_an_error(partner: ChatPartner) -> None:
    conversation = Conversation(partner, "", io.StringIO(), io.StringIO())
    with pytest.raises(SetupError, match="nothing was piped"):
        answer_pipe(conversation, io.StringIO(" \n"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--url"),
        (["--model", "m", "--url", "http://127.0.0.1:1"], "--url"),
        (["--url", "http://127.0.0.1:1"], "no server answers"),
        (["--url", "nonsense"], "nonsense"),
        (["--model", "/nowhere"], "does not exist"),
    ],
)
def test_nobody_to_chat_with_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", *arguments]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert says in lines[0]


def test_a_wrong_key_is_one_line(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", server.url, "--api-key", "wrong"]) == 1
    assert "API key" in capsys.readouterr().err


def test_on_a_terminal(options: EngineOptions) -> None:
    """Ask, stop a long reply by Ctrl-C, ask again, leave by Ctrl-D."""
    with running_server(
        options,
        ServerOptions(port=0, api_keys=("key",)),
        wrap=lambda engine: SlowForward(engine.scheduler.runner, seconds=0.03),
    ) as server:
        talk_on_a_terminal(server)


def talk_on_a_terminal(server: RunningServer) -> None:
    command = str(Path(sys.executable).with_name("deeproot"))
    child, terminal = pty.fork()
    if child == 0:
        # A dumb terminal, so that the prompt comes as plain characters.
        environment = {**os.environ, "TERM": "dumb"}
        # Tests that run in the background may have been told to ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(command, [command, "chat", "--url", server.url, "--api-key", "key"], environment)
    screen = Screen(terminal)
    try:
        screen.read_until(b"> ")
        os.write(terminal, b"tell me something long\r")
        wait_until(lambda: server.metrics()["deeproot_requests_running"] == 1)
        os.write(terminal, CTRL_C)
        screen.read_until(b"[stopped]")
        server.wait_idle()
        screen.read_until(b"> ")
        os.write(terminal, b"again\r")
        screen.read_until(b"cached]")
        screen.read_until(b"> ")
        assert exit_code(child, terminal, screen) == 0
    finally:
        os.close(terminal)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def exit_code(child: int, terminal: int, screen: "Screen") -> int:
    """Press Ctrl-D until the program has gone: it is not heard between the prompt's text and its being ready."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        os.write(terminal, CTRL_D)
        screen.read_some()
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
    raise AssertionError("it does not end")


class Screen:
    """What a program on a terminal has shown."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = b""

    def read_until(self, words: bytes) -> None:
        """Read on until `words` have been shown."""
        deadline = time.monotonic() + 60
        while words not in self._unread:
            assert time.monotonic() < deadline, self._unread
            self.read_some()
        self._unread = self._unread.split(words, 1)[1]

    def read_some(self) -> None:
        """Read what is shown within a moment."""
        if select.select([self._terminal], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):  # the program has gone
                self._unread += os.read(self._terminal, 4096)
