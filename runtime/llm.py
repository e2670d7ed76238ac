"""`LLM`: a model in this process, without a server."""

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deeproot.runtime.cache_price import Probed, Tariff, cost_of
from deeproot.runtime.chat.reply_events import ReplyEvent
from deeproot.runtime.context.cost_oracle import EditCost
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.llm_cache import CacheHints, Sessions
from deeproot.runtime.llm_completion import Completion, completion_of
from deeproot.runtime.llm_options import engine_options as read_options
from deeproot.runtime.llm_requests import Made, Messages, Requests
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sampling_options import SamplingOptions
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import ToolChoice, ToolUse
from deeproot.runtime.sync_client import SyncClient
from deeproot.scheduler.questions import ProbeAnswer, ProbeQuestion


class LLM:
    """A model loaded for offline use; prompts share their prefixes in its cache.

    `with LLM("model.gguf") as llm: llm.generate("Once upon a time", SamplingOptions(max_tokens=20))`. Several threads
    may use one at a time. The engine runs in a thread, which `close` ends.
    """

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
        engine_options = read_options(model, options)
        self._engine = load_engine(engine_options, on_progress)
        self._client = SyncClient(ThreadTransport(self._engine.scheduler, self._engine.info))
        self.sessions = Sessions(self._client)
        """Of the requests whose hints name one."""
        self._requests = Requests(
            self._engine.speech, engine_options.continuation_memory_bytes, engine_options.seed
        )
        # Also ends the thread of one that nobody closed, when it is collected or Python exits.
        self._closer = weakref.finalize(self, self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def continuation_tokens(self) -> int:
        """Prompt tokens that remembered replies kept from being computed anew, if they were still cached."""
        return self._requests.continuation_tokens

    def close(self) -> None:
        """End the engine's thread and the chat template's process. Calling it again does nothing."""
        self._closer()
        self._engine.speech.processes.close()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling: SamplingOptions | None = None,
        *,
        n: int = 1,
        structured_outputs: StructuredOutputs | None = None,
        hints: CacheHints | None = None,
    ) -> list[Completion]:
        """Complete prompts, texts or token ids, all at once; `n` results a prompt, in order. Each gets 16 tokens unless
        `sampling` says otherwise. The seeds of a prompt's results count on from the first one's. With
        `structured_outputs` each output has the given form. `hints` are for each of them.

        Raises OptionError, a ValueError, for sampling options or prompts that cannot be.
        """
        many: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        made = self._requests.of_prompts(many, sampling or SamplingOptions(), structured_outputs, n)
        texts = [one.text for one in made]
        events: list[list[ReplyEvent]] = [[] for _ in made]
        for index, news in self._run(made, hints):
            events[index] += news
        for one in made:
            self._requests.remember_text(one)
        return [completion_of(text, news) for text, news in zip(texts, events, strict=True)]

    def chat(
        self,
        messages: Messages,
        sampling: SamplingOptions | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        structured_outputs: StructuredOutputs | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        exact: bool = False,
        continue_final_message: bool = False,
        hints: CacheHints | None = None,
    ) -> Completion:
        """Answer a conversation in OpenAI's form; with `tools`, calls in the answer become `tool_calls`.

        `tool_choice` ("auto", "none", "required" or a function's name in OpenAI's form) and `parallel_tool_calls` are
        enforced, and so is the schema of a tool that says `strict`; an answer that is no call has the form of
        `structured_outputs`.
        Earlier answers in `messages` get the very tokens that the model wrote, also if white space at their end or
        the JSON of their calls is written otherwise now; with `exact` only if they are the same to the letter.
        With `continue_final_message` the model goes on with the last message instead of answering it. `hints`: which
        session it belongs to, and what of it is worth keeping in the cache.
        Raises TemplateError and OptionError, both ValueErrors.
        """
        *_, last = self.stream_chat(
            messages,
            sampling,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            structured_outputs=structured_outputs,
            template_kwargs=template_kwargs,
            exact=exact,
            continue_final_message=continue_final_message,
            hints=hints,
        )
        assert isinstance(last, Completion), "a stream ends with the whole"
        return last

    def stream_chat(
        self,
        messages: Messages,
        sampling: SamplingOptions | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        structured_outputs: StructuredOutputs | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        exact: bool = False,
        continue_final_message: bool = False,
        hints: CacheHints | None = None,
    ) -> Generator[ReplyEvent | Completion, None, None]:
        """As `chat`, piece by piece: events as they come and, last, the whole. Closing it ends the request."""
        use = ToolUse(tools or (), tool_choice, parallel_tool_calls)
        made = self._requests.of_chat(
            messages,
            sampling or SamplingOptions(),
            use,
            structured_outputs,
            template_kwargs or {},
            exact=exact,
            goes_on=continue_final_message,
        )
        events: list[ReplyEvent] = []
        with closing(self._run([made], hints)) as run:
            for _, news in run:
                events += news
                yield from news
        self._requests.remember_chat(made)
        yield completion_of(made.text, events)

    def chat_tokens(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> TokenIds:
        """The prompt that `chat` would make of a conversation, int32, shape [tokens]. Raises TemplateError."""
        return self._requests.chat_prompt(messages, tools or (), template_kwargs or {}).token_ids

    def probe(self, prompts: Sequence[str | Sequence[int] | TokenIds]) -> Probed:
        """How much of each prompt, a text or token ids, is cached. Uses nothing."""
        ids = [self._requests.prompt(prompt).token_ids for prompt in prompts]
        answer = self._client.ask(ProbeQuestion(tuple(one.tobytes() for one in ids)), ProbeAnswer)
        return Probed(tuple(map(len, ids)), answer.cached, answer.tokens_per_second)

    def price(
        self,
        old: str | Sequence[int] | TokenIds,
        new: str | Sequence[int] | TokenIds,
        tariff: Tariff | None = None,
    ) -> tuple[EditCost, EditCost]:
        """What it would cost to send each of the two prompts now."""
        probed = self.probe([old, new])
        tariff = tariff or Tariff()
        return cost_of(probed, 0, tariff), cost_of(probed, 1, tariff)

    def _run(
        self, made: Sequence[Made], hints: CacheHints | None
    ) -> Generator[tuple[int, list[ReplyEvent]], None, None]:
        requests = [one.request for one in made]
        if hints is not None:
            hints.check()
            requests = [hints.of_request(request) for request in requests]
        index_of = {request.rid: i for i, request in enumerate(requests)}
        with closing(self._client.run(requests)) as outputs:
            for output in outputs:
                index = index_of[output.rid]
                text = made[index].text
                was_complete = text.wants_abort
                events = text.feed(output)
                if text.wants_abort and not was_complete:
                    self._client.abort(output.rid)
                yield index, events
        if hints is not None:
            for request in requests:
                hints.hold(self._client, request.rid)
