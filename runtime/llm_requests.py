"""From what callers of `LLM` give to what the engine is asked for."""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeproot.runtime.chat.continuation import ChatContinuation, Prompt
from deeproot.runtime.chat.reply_parser import ReplyParser
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.continuations import make_continuations
from deeproot.runtime.llm_completion import ended_well
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
from deeproot.runtime.speech import Speech
from deeproot.runtime.structured.held import held_to, stops_of
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import OutputGrammar, ToolUse
from deeproot.scheduler.messages import AddRequest

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Made:
    """A request, and what becomes of its tokens."""

    prompt: Prompt
    request: AddRequest
    text: OutputText


class Requests:
    """Makes the requests of one `LLM`, and remembers its replies for the prompts that hold them."""

    def __init__(self, speech: Speech, continuation_memory_bytes: int, seed: int | None) -> None:
        """continuation_memory_bytes: for what replies' tokens are. seed: of requests without one."""
        self.continuation_tokens = 0
        """Prompt tokens that remembered replies kept from being computed anew, if they were still cached."""
        self._speech = speech
        self._continuations = make_continuations(
            speech.assets.tokenizer, speech.template, speech.reply_format, continuation_memory_bytes
        )
        self._seeds = random.Random(seed)
        self._rids = itertools.count()

    def of_prompts(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingOptions,
        structure: StructuredOutputs | None,
        n: int,
    ) -> list[Made]:
        """`n` requests for each prompt, in order. Raises OptionError."""
        grammar = self._speech.grammars.make(structure)
        given = [self.prompt(prompt) for prompt in prompts]
        defaults = dataclasses.replace(self._speech.defaults, max_new_tokens=COMPLETION_MAX_TOKENS)
        n = check_choices(n)
        return [
            Made(prompt, request, self._text(sampling, grammar, continues_text=True))
            for prompt in given
            for request in self._requests(prompt, sampling, defaults, grammar, n)
        ]

    def of_chat(
        self,
        messages: Messages,
        sampling: SamplingOptions,
        use: ToolUse,
        structure: StructuredOutputs | None,
        template_kwargs: Mapping[str, Any],
        *,
        exact: bool,
        goes_on: bool,
    ) -> Made:
        """See `LLM.chat`."""
        speech = self._speech
        rendering = speech.require_template().rendering(
            messages,
            use.tools,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            **template_kwargs,
        )
        grammar = speech.grammars.make(structure, tools=use, prompt=rendering.text)
        prompt = self._of_chat.prompt(rendering, exact=exact)
        parser = speech.reply_format.parser(rendering.text, use.callable)
        text = self._text(
            sampling, grammar, parser=parser, single_call=not use.parallel, continues_text=goes_on
        )
        (request,) = self._requests(prompt, sampling, speech.defaults, grammar)
        return Made(prompt, request, text)

    def chat_prompt(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> Prompt:
        """The prompt of a conversation that is to be answered. Raises TemplateError."""
        return self._of_chat.prompt(
            self._speech.require_template().rendering(messages, tools, **template_kwargs)
        )

    def prompt(self, prompt: str | Sequence[int] | TokenIds) -> Prompt:
        """Of a text, or of token ids, which have no key. Raises OptionError."""
        if isinstance(prompt, str):
            return self._continuations.text.prompt(prompt)
        check_token_ids([int(token_id) for token_id in prompt], self._speech.defaults.vocab_size, "prompts")
        return Prompt(np.array(prompt, dtype=np.int32), key=b"", ending="")

    def remember_text(self, made: Made) -> None:
        """The tokens of a text's continuation, unless it broke off or the prompt was token ids."""
        if made.prompt.key and ended_well(made.text):
            self._continuations.text.remember(made.prompt, made.text.token_ids)

    def remember_chat(self, made: Made) -> None:
        """The tokens of an answer, unless it broke off."""
        if ended_well(made.text):
            self._of_chat.remember(made.prompt, made.text.token_ids)

    @property
    def _of_chat(self) -> ChatContinuation:
        continuation = self._continuations.chat
        assert continuation is not None, "there is a template"
        return continuation

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
            self._speech.assets.tokenizer,
            stops_of(grammar, sampling),
            parser=parser,
            single_call=single_call,
            continues_text=continues_text,
            min_tokens=sampling.min_tokens,
        )
