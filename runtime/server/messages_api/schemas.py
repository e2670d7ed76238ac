"""Bodies of requests, as Anthropic's Messages API defines them. Unknown fields are ignored, as in `schemas`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from deeproot.runtime.server.schemas import (
    MAX_MESSAGES,
    MAX_TOOLS,
    CacheSalt,
    ContextManagement,
    OwnOptions,
    RequestModel,
)


class Block(RequestModel):
    """A content block of any type; `translate` knows which types can be served."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str


Content = str | Annotated[list[Block], Field(fail_fast=True)]


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(RequestModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(RequestModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class TurnParam(RequestModel):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Content


class ToolDefinition(RequestModel):
    """A tool of the client's own; types beside `custom` are tools that Anthropic runs."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str | None = None
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(RequestModel):
    type: str
    """`enabled`, `adaptive` and the like; `disabled`."""


class OutputFormat(RequestModel):
    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestModel):
    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(RequestModel):
    """`POST /v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[list[TurnParam], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: Content | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None


class MessagesRequest(CountTokensRequest):
    """`POST /v1/messages`."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    """This and what follows is ours, as in chat completions."""
    min_p: float | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: CacheSalt | None = None
    deeproot: OwnOptions | None = None
