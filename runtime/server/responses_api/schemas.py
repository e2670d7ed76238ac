"""Bodies of requests, as OpenAI's Responses API defines them. Unknown fields are ignored, as in `schemas`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from deeproot.runtime.server.schemas import MAX_MESSAGES, MAX_TOOLS, CacheSalt, OwnOptions, RequestModel


class InputItem(RequestModel):
    """An item of a conversation of any type; `items` knows which types can be served."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str | None = None
    """May be left out of messages."""


class Part(RequestModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str
    text: str | None = None


PartList = Annotated[list[Part], Field(fail_fast=True)]


class MessageItem(RequestModel):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | PartList


class FunctionCallItem(RequestModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(RequestModel):
    type: Literal["function_call_output"]
    call_id: str
    output: str | PartList


class ReasoningItem(RequestModel):
    type: Literal["reasoning"]
    content: PartList | None = None


class ToolDefinition(RequestModel):
    """A function of the client's own; other types are tools that OpenAI runs."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class TextFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(RequestModel):
    format: TextFormat | None = None


class Reasoning(RequestModel):
    effort: str | None = None


class ResponsesRequest(RequestModel):
    """`POST /v1/responses`.

    Fields not listed are kept in `model_extra`, so that known but unsupported ones can be refused.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    model: str | None = None
    input: str | Annotated[list[InputItem], Field(max_length=MAX_MESSAGES, fail_fast=True)] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: Annotated[list[str], Field(max_length=32, fail_fast=True)] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    seed: int | None = None
    """This and what follows is ours, as in chat completions."""
    min_p: float | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: CacheSalt | None = None
    deeproot: OwnOptions | None = None
