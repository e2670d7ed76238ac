"""Chatting with a model that is loaded in this process."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from deeproot.runtime.chat.reply_events import ContentDelta
from deeproot.runtime.chat_reply import ChatFailed, Message, Reply
from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_completion import Completion
from deeproot.runtime.model_search import name_of
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sampling_options import SamplingOptions


class LocalChat:
    """See `ChatPartner`."""

    def __init__(
        self, options: EngineOptions, sampling: SamplingOptions, on_progress: Callable[[int, int], None]
    ) -> None:
        """Loads the model; raises SetupError."""
        self.name = name_of(Path(options.model))
        self._sampling = sampling
        self._llm = LLM(options, on_progress=on_progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._llm.close()

    def stream(self, messages: Sequence[Message], reply: Reply) -> Generator[str, None, None]:
        try:
            stream = self._llm.stream_chat(messages, self._sampling)
            with closing(stream):
                for event in stream:
                    if isinstance(event, ContentDelta):
                        reply.first_piece_at = reply.first_piece_at or time.perf_counter()
                        yield event.text
                    elif isinstance(event, Completion):
                        reply.prompt_tokens = event.usage.prompt
                        reply.cached_tokens = event.usage.cached
                        reply.output_tokens = event.usage.output
        except ValueError as error:
            raise ChatFailed(str(error)) from None
