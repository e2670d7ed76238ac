"""`POST /v1/completions`."""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from msgspec import UNSET, UnsetType

from deeproot.runtime.chat.continuation import Prompt
from deeproot.runtime.chat.reply_events import collect
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.sampling_options import COMPLETION_MAX_TOKENS, check_token_ids
from deeproot.runtime.server.answers import answer
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.explaining import Asker, asker_of, explained
from deeproot.runtime.server.generation_options import (
    check_common,
    engine_request,
    new_id,
    sampling_options,
)
from deeproot.runtime.server.job import Job, Piece
from deeproot.runtime.server.responses import TextChoice, TextCompletion, UsageInfo
from deeproot.runtime.server.schemas import CompletionRequest
from deeproot.runtime.server.service_routes import check_model_name
from deeproot.runtime.server.sse import COMPLETIONS_FRAMING
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.structure_fields import grammar_of
from deeproot.runtime.server.unsupported import COMPLETION_UNSUPPORTED
from deeproot.runtime.structured.held import stops_of


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1")
    read_body = json_body(CompletionRequest, max_body_bytes)

    @router.post("/completions", openapi_extra=openapi_body(CompletionRequest))
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
        job = await asyncio.to_thread(_prepare, serving, body, asker, completion_id, started)
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        shape = TextShape(completion_id, name, include_usage)
        return await answer(request, state, job, shape, stream=bool(body.stream))

    return router


def _prepare(
    serving: Serving, body: CompletionRequest, asker: Asker, completion_id: str, started: float
) -> Job:
    speech = serving.speech
    defaults = dataclasses.replace(speech.defaults, max_new_tokens=COMPLETION_MAX_TOKENS)
    given = _prompts(body)
    options = sampling_options(body, body.max_tokens)
    grammar = grammar_of(body, speech.grammars)
    requests, texts, prompts = [], [], []
    for i, one in enumerate(given):
        field = "prompt" if len(given) == 1 else f"prompt[{i}]"
        prompt = _prompt(serving, one, field)
        prompts.append(prompt)
        requests.append(
            engine_request(
                f"{completion_id}-{i}",
                prompt.token_ids,
                options,
                defaults,
                fallback_seed=serving.seeds.getrandbits(64),
                prompt_field=field,
                grammar=grammar,
            )
        )
        texts.append(OutputText(speech.assets.tokenizer, stops_of(grammar, options), continues_text=True))

    def remember(index: int, token_ids: list[int]) -> None:
        if isinstance(given[index], str):
            serving.continuations.text.remember(prompts[index], token_ids)

    saved = sum(prompt.tokens_saved for prompt in prompts)
    pending, told = explained(serving, asker, requests, None)
    return Job(
        "completions",
        told,
        tuple(texts),
        started,
        remember=remember,
        tokens_saved=saved,
        explaining=pending,
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


def _prompt(serving: Serving, prompt: str | list[int], field: str) -> Prompt:
    if isinstance(prompt, str):
        return serving.continuations.text.prompt(prompt)
    check_token_ids(prompt, serving.speech.defaults.vocab_size, field)
    return Prompt(np.array(prompt, dtype=np.int32), key=b"", ending="")


class TextShape:
    """See `answers.Shape`."""

    framing = COMPLETIONS_FRAMING

    def __init__(self, completion_id: str, model: str, include_usage: bool) -> None:
        self._id = completion_id
        self._model = model
        self._created = int(time.time())
        self._usage_of_chunks = None if include_usage else UNSET

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo) -> TextCompletion:
        texts: dict[int, list[str]] = {}
        reasons: dict[int, str] = {}
        for piece in pieces:
            texts.setdefault(piece.index, []).append(collect(piece.events).content)
            if piece.end is not None:
                reasons[piece.index] = piece.end.reason
        choices = [
            TextChoice(index=i, text="".join(texts[i]), finish_reason=reasons[i]) for i in sorted(texts)
        ]
        return self._body(choices, usage)

    def chunks(self, piece: Piece) -> list[object]:
        text = collect(piece.events).content
        chunks: list[object] = []
        if text:
            chunks.append(self._chunk(TextChoice(index=piece.index, text=text)))
        if piece.end is not None:
            chunks.append(self._chunk(TextChoice(index=piece.index, text="", finish_reason=piece.end.reason)))
        return chunks

    def last_chunks(self, usage: UsageInfo, *, at_least_one: bool) -> list[object]:
        wanted = self._usage_of_chunks is not UNSET
        return [self._body([], usage if wanted else UNSET)] if wanted or at_least_one else []

    def _chunk(self, choice: TextChoice) -> TextCompletion:
        return self._body([choice], self._usage_of_chunks)

    def _body(self, choices: list[TextChoice], usage: UsageInfo | UnsetType | None) -> TextCompletion:
        return TextCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )
