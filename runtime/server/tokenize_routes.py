"""`POST /tokenize` and `POST /detokenize`, in vLLM's forms."""

import asyncio
import dataclasses
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.sampling_options import check_token_ids
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.chat_routes import conversation_of, prompt_of, shown_conversation
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.schemas import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatCompletionRequest,
    ChatMessage,
    RequestModel,
    TokenIds,
    Tool,
)
from deeproot.runtime.server.service_routes import check_model_name, json_response
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.tenants import tenant_of


class TokenizeRequest(RequestModel):
    """`POST /tokenize`: a plain prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """False leaves out the opening of the next reply."""
    add_special_tokens: bool | None = None
    """Of a plain prompt; false leaves out the token that begins a text."""
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
    if (body.prompt is None) == (body.messages is None):
        raise invalid("Give either prompt or messages.", "prompt")
    ids_of = _ids_of_text if body.messages is None else _ids_of_chat
    ids = ids_of(serving, body, tenant)
    tokens, tokenizer = ids.tolist(), serving.speech.assets.tokenizer
    strings = None
    if body.return_token_strs:
        strings = [tokenizer.text_of(token_id) for token_id in tokens]
    return Tokenized(len(tokens), serving.speech.defaults.max_model_len, tokens, strings)


def _ids_of_text(serving: Serving, body: TokenizeRequest, tenant: Tenant) -> Int32Array:
    tokenizer, text = serving.speech.assets.tokenizer, body.prompt or ""
    if body.add_special_tokens is False:
        return tokenizer.encode(text, parse_special=True)
    return serving.continuations.text.prompt(text, namespace=tenant.namespace).token_ids


def _ids_of_chat(serving: Serving, body: TokenizeRequest, tenant: Tenant) -> Int32Array:
    assert body.messages is not None, "the caller has looked"
    chat_body = ChatCompletionRequest(
        messages=body.messages, tools=body.tools, chat_template_kwargs=body.chat_template_kwargs
    )
    chat = conversation_of(chat_body)
    if body.add_generation_prompt is False:
        kwargs = {**chat.template_kwargs, "add_generation_prompt": False}
        chat = dataclasses.replace(chat, template_kwargs=kwargs)
    shown, _, _ = shown_conversation(serving, tenant, chat_body, chat)
    return prompt_of(serving, chat_body, shown, tenant.namespace)[2].token_ids
