"""`POST /v1/completions`."""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Request, Response

from deeproot.runtime.chat.continuation import Prompt
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.sampling_options import (
    COMPLETION_MAX_TOKENS,
    MAX_CHOICES,
    SamplingOptions,
    check_choices,
    check_token_ids,
)
from deeproot.runtime.server.answers import answer
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.cache_marks import lease_of, text_marks
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.explaining import Asker, asker_of, explained
from deeproot.runtime.server.generation_options import (
    check_common,
    engine_requests,
    new_id,
    sampling_options,
)
from deeproot.runtime.server.hinting import hinted, text_hinting
from deeproot.runtime.server.job import Job
from deeproot.runtime.server.precedence import has_room
from deeproot.runtime.server.schemas import CompletionRequest
from deeproot.runtime.server.service_routes import check_model_name
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.structure_fields import grammar_of
from deeproot.runtime.server.text_shape import Echo, TextShape
from deeproot.runtime.server.unsupported import COMPLETION_UNSUPPORTED
from deeproot.runtime.structured.held import stops_of
from deeproot.runtime.structured.output_grammar import OutputGrammar
from deeproot.scheduler.messages import AddRequest


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1")
    read_body = json_body(CompletionRequest, max_body_bytes)

    @router.post(
        "/completions", dependencies=[Depends(has_room)], openapi_extra=openapi_body(CompletionRequest)
    )
    async def completions(
        request: Request,
        state: Annotated[ServerState, Depends(state_of)],
        body: Annotated[CompletionRequest, Depends(read_body)],
    ) -> Response:
        """Text completions, one a prompt, whole or streamed."""
        started = time.perf_counter()
        serving = state.ready()
        name = check_model_name(body.model, state)
        check_common(body, COMPLETION_UNSUPPORTED)
        completion_id = new_id("cmpl")
        asker = asker_of(request, body)
        job, echoes = await asyncio.to_thread(_prepare, serving, body, asker, completion_id, started)
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        tokenizer = None if body.logprobs is None else serving.speech.assets.tokenizer
        shape = TextShape(completion_id, name, include_usage, tokenizer=tokenizer, echoes=echoes)
        return await answer(request, state, job, shape, stream=bool(body.stream))

    return router


def _prepare(
    serving: Serving, body: CompletionRequest, asker: Asker, completion_id: str, started: float
) -> tuple[Job, list[Echo]]:
    """The engine's work, and what each choice's text begins with if the prompt is to be echoed."""
    speech = serving.speech
    tokenizer = speech.assets.tokenizer
    defaults = dataclasses.replace(speech.defaults, max_new_tokens=COMPLETION_MAX_TOKENS)
    given, n = _prompts(body), check_choices(body.n)
    _check_number(len(given), n)
    _check_best_of(body, n)
    options = _options(body)
    grammar = grammar_of(body, speech.grammars)
    requests: list[AddRequest] = []
    echoes: list[Echo] = []
    prompts: list[Prompt] = []
    for i, one in enumerate(given):
        field = "prompt" if len(given) == 1 else f"prompt[{i}]"
        prompt = _prompt(serving, one, field, asker.tenant.namespace)
        prompts.append(prompt)
        requests += engine_requests(
            [f"{completion_id}-{i * n + k}" for k in range(n)],
            prompt.token_ids,
            options,
            defaults,
            fallback_seed=serving.seeds.getrandbits(64),
            prompt_field=field,
            grammar=grammar,
        )
        if body.echo:
            text = one if isinstance(one, str) else tokenizer.decode(one)
            echoes += [Echo(text, prompt.token_ids)] * n
    texts = tuple(_text(tokenizer, body, options, grammar) for _ in requests)

    def remember(index: int, token_ids: list[int]) -> None:
        if isinstance(given[index // n], str):
            serving.continuations.text.remember(prompts[index // n], token_ids)

    saved = sum(prompt.tokens_saved for prompt in prompts)
    pending, told = explained(serving, asker, requests, None)
    hinting = text_hinting(serving, asker.tenant, text_marks(body), asker.session, lease_of(body))
    job = Job(
        "completions",
        hinted(hinting, told),
        texts,
        started,
        remember=remember,
        tokens_saved=saved,
        choices=n,
        explaining=pending,
        hinting=hinting,
        traceparent=asker.traceparent,
    )
    return job, echoes


def _prompt_only(body: CompletionRequest) -> bool:
    """Whether only the prompt is of interest. The engine always computes a token, which is then dropped."""
    return bool(body.echo) and body.max_tokens == 0


def _options(body: CompletionRequest) -> SamplingOptions:
    return sampling_options(
        body,
        1 if _prompt_only(body) else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )


def _text(
    tokenizer: Tokenizer, body: CompletionRequest, options: SamplingOptions, grammar: OutputGrammar | None
) -> OutputText:
    return OutputText(
        tokenizer,
        stops_of(grammar, options),
        continues_text=True,
        min_tokens=options.min_tokens,
        no_output=_prompt_only(body),
    )


def _check_number(num_prompts: int, n: int) -> None:
    if num_prompts * n > MAX_CHOICES:
        raise invalid(
            f"{num_prompts} prompts with n = {n} ask for {num_prompts * n} answers, but a request gets at most "
            f"{MAX_CHOICES}: lower n or send fewer prompts.",
            "n",
        )


def _check_best_of(body: CompletionRequest, n: int) -> None:
    if body.best_of not in (None, n):
        raise invalid(
            f"best_of is {body.best_of} and n is {n}: this server gives every answer that it computes. Ask for as many "
            "as you want with n, with logprobs if you mean to choose among them, and leave best_of out.",
            "best_of",
            "unsupported",
        )


def _prompts(body: CompletionRequest) -> Sequence[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt is an empty list: give a string, token ids, or a list of either.", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return prompt


def _prompt(serving: Serving, prompt: str | list[int], field: str, namespace: bytes) -> Prompt:
    if isinstance(prompt, str):
        return serving.continuations.text.prompt(prompt, namespace)
    check_token_ids(prompt, serving.speech.defaults.vocab_size, field)
    return Prompt(np.array(prompt, dtype=np.int32), key=b"", ending="")
