"""`LLM`: a model in this process, without a server."""

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from deeproot.runtime.chat.continuation import Prompt
from deeproot.runtime.chat.reply_events import ReplyEvent
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.llm_cache import CacheCalls, CacheHints, chat_boundaries, engine_hints, text_boundaries
from deeproot.runtime.llm_completion import Completion, completion_of, ended_well
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.sampling_options import (
    COMPLETION_MAX_TOKENS,
    SamplingOptions,
    check_choices,
)
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import ToolChoice, ToolUse
from deeproot.scheduler.messages import AddRequest, Boundary

Messages = Sequence[Mapping[str, Any]]


class LLM(CacheCalls):
    """A model loaded for offline use; prompts share their prefixes in its cache.

    `with LLM("model.gguf") as llm: llm.generate("Once upon a time", SamplingOptions(max_tokens=20))`. Several threads
    may use one at a time. The engine runs in a thread, which `close` ends.
    """

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling: SamplingOptions | None = None,
        *,
        n: int = 1,
        structured_outputs: StructuredOutputs | None = None,
        cache: CacheHints | None = None,
    ) -> list[Completion]:
        """Complete prompts, texts or token ids, all at once; `n` results a prompt, in order. Each gets 16 tokens unless
        `sampling` says otherwise. The seeds of a prompt's results count on from the first one's. With
        `structured_outputs` each output has the given form. `cache` says of each what is to be kept.

        Raises OptionError, a ValueError, for sampling options or prompts that cannot be.
        """
        sampling = sampling or SamplingOptions()
        grammar = self._engine.speech.grammars.make(structured_outputs)
        many: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        given = [self._prompt(prompt) for prompt in many]
        defaults = dataclasses.replace(self._engine.speech.defaults, max_new_tokens=COMPLETION_MAX_TOKENS)
        n = check_choices(n)
        kept = text_boundaries(cache or CacheHints())
        requests = [
            one
            for prompt in given
            for one in self._requests(
                prompt, sampling, defaults, grammar, n, engine_hints(cache), cache.priority if cache else 0
            )
        ]
        texts = [self._text(sampling, grammar, continues_text=True) for _ in requests]
        events: list[list[ReplyEvent]] = [[] for _ in requests]
        for index, news in self._run(requests, texts):
            events[index] += news
        for index, text in enumerate(texts):
            self._hold(requests[index].rid, kept)
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
        cache: CacheHints | None = None,
    ) -> Completion:
        """Answer a conversation in OpenAI's form; with `tools`, calls in the answer become `tool_calls`.

        `tool_choice` ("auto", "none", "required" or a function's name in OpenAI's form) and `parallel_tool_calls` are
        enforced, and so is the schema of a tool that says `strict`; an answer that is no call has the form of
        `structured_outputs`.
        Earlier answers in `messages` get the very tokens that the model wrote, also if white space at their end or
        the JSON of their calls is written otherwise now; with `exact` only if they are the same to the letter.
        With `continue_final_message` the model goes on with the last message instead of answering it.
        `cache` says which session the call is of, and what of it is to be kept.
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
            cache=cache,
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
        cache: CacheHints | None = None,
    ) -> Generator[ReplyEvent | Completion, None, None]:
        """As `chat`, piece by piece: events as they come and, last, the whole. Closing it ends the request."""
        use = ToolUse(tools or (), tool_choice, parallel_tool_calls)
        prompt, request, text = self._chat_request(
            messages, sampling, use, structured_outputs, template_kwargs, exact, continue_final_message, cache
        )
        kept = self._chat_boundaries(cache, messages, use.tools, template_kwargs, prompt)
        events: list[ReplyEvent] = []
        with closing(self._run([request], [text])) as run:
            for _, news in run:
                events += news
                yield from news
        self._remember_chat(prompt, text)
        self._hold(request.rid, kept)
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

    def _chat_request(
        self,
        messages: Messages,
        sampling: SamplingOptions | None,
        use: ToolUse,
        structure: StructuredOutputs | None,
        template_kwargs: Mapping[str, Any] | None,
        exact: bool,
        goes_on: bool,
        cache: CacheHints | None,
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
        (request,) = self._requests(
            prompt,
            sampling,
            speech.defaults,
            grammar,
            hints=engine_hints(cache),
            priority=cache.priority if cache else 0,
        )
        return prompt, request, text

    def _chat_boundaries(
        self,
        cache: CacheHints | None,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any] | None,
        prompt: Prompt,
    ) -> list[Boundary]:
        if cache is None:
            return []
        template, continuation = self._engine.speech.require_template(), self._continuations.chat
        assert continuation is not None, "there is a template"
        kwargs = template_kwargs or {}
        return chat_boundaries(cache, template, continuation, messages, tools, kwargs, prompt.token_ids)

    def _remember_chat(self, prompt: Prompt, text: OutputText) -> None:
        if self._continuations.chat is not None and ended_well(text):
            self._continuations.chat.remember(prompt, text.token_ids)
