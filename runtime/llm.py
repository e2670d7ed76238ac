"""`LLM`: a model in this process, without a server."""

import dataclasses
import itertools
import random
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from deeproot.runtime.cache_price import Probed, Tariff, cost_of
from deeproot.runtime.chat.continuation import Prompt
from deeproot.runtime.chat.reply_events import ReplyEvent
from deeproot.runtime.chat.reply_parser import ReplyParser
from deeproot.runtime.context.cost_oracle import EditCost
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.continuations import make_continuations
from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.llm_completion import Completion, completion_of, ended_well
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.sampling_options import (
    COMPLETION_MAX_TOKENS,
    SamplingDefaults,
    SamplingOptions,
    check_choices,
    check_prompt_length,
    check_token_ids,
    choices,
    resolve,
)
from deeproot.runtime.speculative import parse_speculative
from deeproot.runtime.structured.held import held_to, stops_of
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import OutputGrammar, ToolChoice, ToolUse
from deeproot.runtime.sync_client import SyncClient
from deeproot.scheduler.messages import AddRequest
from deeproot.scheduler.questions import ProbeAnswer, ProbeQuestion

Messages = Sequence[Mapping[str, Any]]


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
        engine_options = _engine_options(model, options)
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

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling: SamplingOptions | None = None,
        *,
        n: int = 1,
        structured_outputs: StructuredOutputs | None = None,
    ) -> list[Completion]:
        """Complete prompts, texts or token ids, all at once; `n` results a prompt, in order. Each gets 16 tokens unless
        `sampling` says otherwise. The seeds of a prompt's results count on from the first one's. With
        `structured_outputs` each output has the given form.

        Raises OptionError, a ValueError, for sampling options or prompts that cannot be.
        """
        sampling = sampling or SamplingOptions()
        grammar = self._engine.speech.grammars.make(structured_outputs)
        many: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        given = [self._prompt(prompt) for prompt in many]
        defaults = dataclasses.replace(self._engine.speech.defaults, max_new_tokens=COMPLETION_MAX_TOKENS)
        n = check_choices(n)
        requests = [one for prompt in given for one in self._requests(prompt, sampling, defaults, grammar, n)]
        texts = [self._text(sampling, grammar, continues_text=True) for _ in requests]
        events: list[list[ReplyEvent]] = [[] for _ in requests]
        for index, news in self._run(requests, texts):
            events[index] += news
        for index, text in enumerate(texts):
            if isinstance(many[index // n], str) and ended_well(text):
                self._continuations.text.remember(given[index // n], text.token_ids)
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
    ) -> Completion:
        """Answer a conversation in OpenAI's form; with `tools`, calls in the answer become `tool_calls`.

        `tool_choice` ("auto", "none", "required" or a function's name in OpenAI's form) and `parallel_tool_calls` are
        enforced, and so is the schema of a tool that says `strict`; an answer that is no call has the form of
        `structured_outputs`.
        Earlier answers in `messages` get the very tokens that the model wrote, also if white space at their end or
        the JSON of their calls is written otherwise now; with `exact` only if they are the same to the letter.
        With `continue_final_message` the model goes on with the last message instead of answering it.
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
    ) -> Generator[ReplyEvent | Completion, None, None]:
        """As `chat`, piece by piece: events as they come and, last, the whole. Closing it ends the request."""
        use = ToolUse(tools or (), tool_choice, parallel_tool_calls)
        prompt, request, text = self._chat_request(
            messages, sampling, use, structured_outputs, template_kwargs, exact, continue_final_message
        )
        events: list[ReplyEvent] = []
        with closing(self._run([request], [text])) as run:
            for _, news in run:
                events += news
                yield from news
        self._remember_chat(prompt, text)
        yield completion_of(text, events)

    def chat_tokens(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> TokenIds:
        """The prompt that `chat` would make of a conversation, int32, shape [tokens]. Raises TemplateError."""
        template = self._engine.speech.require_template()
        continuation = self._continuations.chat
        assert continuation is not None, "there is a template"
        return continuation.prompt(
            template.rendering(messages, tools or (), **(template_kwargs or {}))
        ).token_ids

    def probe(self, prompts: Sequence[str | Sequence[int] | TokenIds]) -> Probed:
        """How much of each prompt, a text or token ids, is cached. Uses nothing."""
        ids = [self._prompt(prompt).token_ids for prompt in prompts]
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

    def _chat_request(
        self,
        messages: Messages,
        sampling: SamplingOptions | None,
        use: ToolUse,
        structure: StructuredOutputs | None,
        template_kwargs: Mapping[str, Any] | None,
        exact: bool,
        goes_on: bool,
    ) -> tuple[Prompt, AddRequest, OutputText]:
        sampling = sampling or SamplingOptions()
        speech = self._engine.speech
        rendering = speech.require_template().rendering(
            messages,
            use.tools,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            **(template_kwargs or {}),
        )
        grammar = speech.grammars.make(structure, tools=use, prompt=rendering.text)
        continuation = self._continuations.chat
        assert continuation is not None, "there is a template"
        prompt = continuation.prompt(rendering, exact=exact)
        parser = speech.reply_format.parser(rendering.text, use.callable)
        text = self._text(
            sampling, grammar, parser=parser, single_call=not use.parallel, continues_text=goes_on
        )
        (request,) = self._requests(prompt, sampling, speech.defaults, grammar)
        return prompt, request, text

    def _remember_chat(self, prompt: Prompt, text: OutputText) -> None:
        if self._continuations.chat is not None and ended_well(text):
            self._continuations.chat.remember(prompt, text.token_ids)

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
    ) -> list[AddRequest]:
        ids = prompt.token_ids
        check_prompt_length(len(ids), defaults.max_model_len, "prompts")
        params = resolve(sampling, defaults, num_prompt=len(ids), fallback_seed=self._seeds.getrandbits(64))
        params = held_to(grammar, params, sampling, defaults.end_token_ids)
        self.continuation_tokens += prompt.tokens_saved
        token_ids = ids.tobytes()
        return [AddRequest(str(next(self._rids)), token_ids, one) for one in choices(params, n)]

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


def _engine_options(model: str | Path | EngineOptions, options: Mapping[str, Any]) -> EngineOptions:
    if isinstance(options.get("speculative_config"), dict):
        try:
            read = parse_speculative(options["speculative_config"])
        except ValueError as error:
            raise SetupError(f"speculative_config: {error}") from None
        options = {**options, "speculative_config": read}
    if isinstance(model, EngineOptions):
        return dataclasses.replace(model, **options)
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    for name in options:
        if name not in known:
            raise SetupError(f"LLM has no option {name!r}; it has: {', '.join(sorted(known - {'model'}))}")
    return EngineOptions(model=str(model), **options)
