"""An engine in this process, and prompts as its requests."""

import itertools
import random
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from deeproot.runtime.chat.continuation import Prompt
from deeproot.runtime.chat.reply_events import ReplyEvent
from deeproot.runtime.chat.reply_parser import ReplyParser
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.continuations import make_continuations
from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.llm_options import engine_options_of
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.sampling_options import (
    SamplingDefaults,
    SamplingOptions,
    check_prompt_length,
    check_token_ids,
    choices,
    resolve,
)
from deeproot.runtime.structured.held import held_to, stops_of
from deeproot.runtime.structured.output_grammar import OutputGrammar
from deeproot.runtime.sync_client import SyncClient
from deeproot.scheduler.messages import AddRequest, Hints


class LocalEngine:
    """A loaded model whose engine runs in a thread, which `close` ends."""

    def __init__(
        self,
        model: str | Path | EngineOptions,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> None:
        """`model`: a GGUF file or a model folder. `options`: the other fields of `EngineOptions`, such as
        `max_model_len=4096` or `dtype="float32"`. `on_progress`: told bytes of weights done and in all.

        Raises SetupError, in one line.
        """
        engine_options = engine_options_of(model, options)
        self._engine = load_engine(engine_options, on_progress)
        self._client = SyncClient(ThreadTransport(self._engine.scheduler, self._engine.info))
        speech = self._engine.speech
        self._continuations = make_continuations(
            speech.assets.tokenizer,
            speech.template,
            speech.reply_format,
            engine_options.continuation_memory_bytes,
        )
        self.continuation_tokens = 0
        """Prompt tokens that remembered replies kept from being computed anew, if they were still cached."""
        self._seeds = random.Random(engine_options.seed)
        self._rids = itertools.count()
        self._warm_turn = threading.Lock()
        # Also ends the thread of one that nobody closed, when it is collected or Python exits.
        self._closer = weakref.finalize(self, self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's thread and the chat template's process. Calling it again does nothing."""
        self._closer()
        self._engine.speech.processes.close()

    def _run(
        self, requests: Sequence[AddRequest], texts: Sequence[OutputText]
    ) -> Generator[tuple[int, list[ReplyEvent]], None, None]:
        index_of = {request.rid: i for i, request in enumerate(requests)}
        with closing(self._client.run(requests)) as outputs:
            for output in outputs:
                index = index_of[output.rid]
                text = texts[index]
                was_complete = text.wants_abort
                events = text.feed(output)
                if text.wants_abort and not was_complete:
                    self._client.abort(output.rid)
                yield index, events

    def _prompt(self, prompt: str | Sequence[int] | TokenIds) -> Prompt:
        if isinstance(prompt, str):
            return self._continuations.text.prompt(prompt)
        check_token_ids(
            [int(token_id) for token_id in prompt], self._engine.speech.defaults.vocab_size, "prompts"
        )
        return Prompt(np.array(prompt, dtype=np.int32), key=b"", ending="")

    def _requests(
        self,
        prompt: Prompt,
        sampling: SamplingOptions,
        defaults: SamplingDefaults,
        grammar: OutputGrammar | None,
        n: int = 1,
        hints: Hints | None = None,
        priority: int = 0,
    ) -> list[AddRequest]:
        ids = prompt.token_ids
        check_prompt_length(len(ids), defaults.max_model_len, "prompts")
        params = resolve(sampling, defaults, num_prompt=len(ids), fallback_seed=self._seeds.getrandbits(64))
        params = held_to(grammar, params, sampling, defaults.end_token_ids)
        self.continuation_tokens += prompt.tokens_saved
        token_ids = ids.tobytes()
        return [
            AddRequest(str(next(self._rids)), token_ids, one, priority=priority, hints=hints)
            for one in choices(params, n)
        ]

    def _text(
        self,
        sampling: SamplingOptions,
        grammar: OutputGrammar | None,
        *,
        parser: ReplyParser | None = None,
        single_call: bool = False,
        continues_text: bool = False,
    ) -> OutputText:
        return OutputText(
            self._engine.speech.assets.tokenizer,
            stops_of(grammar, sampling),
            parser=parser,
            single_call=single_call,
            continues_text=continues_text,
            min_tokens=sampling.min_tokens,
        )
