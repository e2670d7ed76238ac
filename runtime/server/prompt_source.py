"""A prompt in the body of a request that is not about an answer: how it is given, and its tokens."""

import dataclasses
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.sampling_options import check_token_ids
from deeproot.runtime.server.chat_routes import conversation_of, prompt_of, shown_conversation
from deeproot.runtime.server.errors import ApiError, invalid
from deeproot.runtime.server.schemas import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatCompletionRequest,
    ChatMessage,
    RequestModel,
    TokenIds,
    Tool,
)
from deeproot.runtime.server.state import Serving


class PromptSource(RequestModel):
    """A plain prompt, or a conversation."""

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


class TokenSource(PromptSource):
    """The same, or the tokens themselves."""

    token_ids: TokenIds | None = None


def ids_of(serving: Serving, source: PromptSource, tenant: Tenant) -> Int32Array:
    """The tokens that a completion of this prompt would begin with. Raises ApiError."""
    if (source.prompt is None) == (source.messages is None):
        raise invalid("Give either prompt or messages.", "prompt")
    return (
        _ids_of_text(serving, source, tenant)
        if source.messages is None
        else _ids_of_chat(serving, source, tenant)
    )


def given_ids(serving: Serving, source: TokenSource, tenant: Tenant, field: str) -> Int32Array:
    """As `ids_of`, also for tokens. field: where the body has `source`, empty at its top. Raises ApiError."""
    start = f"{field}." if field else ""
    if source.token_ids is not None:
        if source.prompt is not None or source.messages is not None:
            raise invalid("Give one of prompt, messages and token_ids.", f"{start}token_ids")
        check_token_ids(source.token_ids, serving.speech.defaults.vocab_size, f"{start}token_ids")
        return np.array(source.token_ids, dtype=np.int32)
    try:
        return ids_of(serving, source, tenant)
    except ApiError as error:
        raise error.about(f"{start}{error.param}") if start and error.param else error from None


def _ids_of_text(serving: Serving, source: PromptSource, tenant: Tenant) -> Int32Array:
    tokenizer, text = serving.speech.assets.tokenizer, source.prompt or ""
    if source.add_special_tokens is False:
        return tokenizer.encode(text, parse_special=True)
    return serving.continuations.text.prompt(text, namespace=tenant.namespace).token_ids


def _ids_of_chat(serving: Serving, source: PromptSource, tenant: Tenant) -> Int32Array:
    assert source.messages is not None, "the caller has looked"
    chat_body = ChatCompletionRequest(
        messages=source.messages, tools=source.tools, chat_template_kwargs=source.chat_template_kwargs
    )
    chat = conversation_of(chat_body)
    if source.add_generation_prompt is False:
        kwargs = {**chat.template_kwargs, "add_generation_prompt": False}
        chat = dataclasses.replace(chat, template_kwargs=kwargs)
    shown, _, _ = shown_conversation(serving, tenant, chat_body, chat)
    return prompt_of(serving, chat_body, shown, tenant.namespace)[2].token_ids
