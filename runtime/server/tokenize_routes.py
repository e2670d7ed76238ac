"""`POST /tokenize` and `POST /detokenize`, in vLLM's forms."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.sampling_options import check_token_ids
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.prompt_source import PromptSource, ids_of
from deeproot.runtime.server.schemas import RequestModel, TokenIds
from deeproot.runtime.server.service_routes import check_model_name, json_response
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.tenants import tenant_of


class TokenizeRequest(PromptSource):
    """`POST /tokenize`."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter()
    read_tokenize = json_body(TokenizeRequest, max_body_bytes)
    read_detokenize = json_body(DetokenizeRequest, max_body_bytes)

    @router.post("/tokenize", openapi_extra=openapi_body(TokenizeRequest))
    async def tokenize(
        request: Request,
        state: Annotated[ServerState, Depends(state_of)],
        body: Annotated[TokenizeRequest, Depends(read_tokenize)],
    ) -> Response:
        """The tokens that a completion of this prompt or conversation would begin with."""
        serving = state.ready()
        check_model_name(body.model, state)
        return json_response(await asyncio.to_thread(_tokenized, serving, body, tenant_of(request, None)))

    @router.post("/detokenize", openapi_extra=openapi_body(DetokenizeRequest))
    async def detokenize(
        request: Request,
        state: Annotated[ServerState, Depends(state_of)],
        body: Annotated[DetokenizeRequest, Depends(read_detokenize)],
    ) -> Response:
        """The text of tokens, control tokens included."""
        serving = state.ready()
        check_model_name(body.model, state)
        check_token_ids(body.tokens, serving.speech.defaults.vocab_size, "tokens")
        tokenizer = serving.speech.assets.tokenizer
        return json_response(
            Detokenized(await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False))
        )

    return router


def _tokenized(serving: Serving, body: TokenizeRequest, tenant: Tenant) -> Tokenized:
    tokens, tokenizer = ids_of(serving, body, tenant).tolist(), serving.speech.assets.tokenizer
    strings = None
    if body.return_token_strs:
        strings = [tokenizer.text_of(token_id) for token_id in tokens]
    return Tokenized(len(tokens), serving.speech.defaults.max_model_len, tokens, strings)
