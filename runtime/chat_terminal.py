"""`deeproot chat`: talk with a model in the terminal, or through a pipe."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory

from deeproot.runtime.chat_remote import RemoteChat
from deeproot.runtime.chat_reply import ChatFailed, ChatPartner, Message, Reply
from deeproot.runtime.cli import engine_options
from deeproot.runtime.logs import set_up_logging
from deeproot.runtime.model_search import name_of
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.progress import loading_progress
from deeproot.runtime.sampling_options import SamplingOptions


def run(args: argparse.Namespace) -> int:
    """Chat until the input ends; returns the exit code. Raises SetupError when there is nobody to chat with."""
    set_up_logging("warning")
    if (args.model is None) == (args.url is None):
        raise SetupError("chat needs either --model PATH, to load a model here, or --url ADDRESS of a server")
    sampling = SamplingOptions(max_tokens=args.max_tokens, temperature=args.temperature)
    partner: AbstractContextManager[ChatPartner]
    try:
        if args.url is not None:
            partner = RemoteChat(args.url, args.api_key, sampling)
        else:
            partner = local_partner(engine_options(args), sampling)
        with partner as answering:
            conversation = Conversation(answering, args.system, sys.stdout, sys.stderr)
            return talk(conversation) if sys.stdin.isatty() else answer_pipe(conversation, sys.stdin)
    except ChatFailed as error:
        raise SetupError(str(error)) from None


@contextmanager
def local_partner(options: EngineOptions, sampling: SamplingOptions) -> Iterator[ChatPartner]:
    """A model loaded in this process."""
    # Here, because a chat with a server needs none of the engine's heavy imports.
    from deeproot.runtime.chat_local import LocalChat

    with loading_progress(name_of(Path(options.model))) as on_progress:
        local = LocalChat(options, sampling, on_progress)
    with local:
        yield local


class Conversation:
    """The turns so far, and how to add one."""

    def __init__(self, partner: ChatPartner, system: str, output: TextIO, notes: TextIO) -> None:
        """Replies are written to `output`, their accounts to `notes`."""
        self._partner = partner
        self._output = output
        self._notes = notes
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str) -> None:
        """Send a turn and write the reply as it comes; Ctrl-C ends the reply, which stays in the conversation.

        Raises ChatFailed; the conversation is as before then.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        reply, pieces, stopped = Reply(), list[str](), False
        with closing(self._partner.stream(messages, reply)) as stream:
            try:
                for piece in stream:
                    pieces.append(piece)
                    self._output.write(piece)
                    self._output.flush()
            except KeyboardInterrupt:
                stopped = True
        self._output.write("\n")
        self._output.flush()
        note = "stopped" if stopped else reply.summary()
        print(f"[{note}]", file=self._notes, flush=True)
        self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]


def talk(conversation: Conversation) -> int:
    """Ask for turns until Ctrl-D."""
    session: PromptSession[str] = PromptSession(history=InMemoryHistory())
    print("Ctrl-C stops a reply, Ctrl-D quits.", file=sys.stderr)
    while True:
        try:
            text = session.prompt("> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        if not text.strip():
            continue
        try:
            conversation.ask(text)
        except ChatFailed as error:
            print(f"[failed: {error}]", file=sys.stderr)


def answer_pipe(conversation: Conversation, source: TextIO) -> int:
    """Take all of `source` as one message and write the reply."""
    text = source.read().rstrip("\n")
    if not text.strip():
        raise SetupError("nothing was piped in: give a message on standard input")
    conversation.ask(text)
    return 0
