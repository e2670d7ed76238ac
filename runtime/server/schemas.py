"""Bodies of requests, as OpenAI's API defines them and vLLM extends them.

Unknown fields are ignored. Types are strict: a known field of a wrong type is an error that names it. Ranges are
checked where values are used. Null means "not given", as it does for OpenAI.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deeproot.runtime.sampling_options import MAX_LOGIT_BIAS

MAX_MESSAGES = 10_000
MAX_TOOLS = 512
MAX_PROMPTS = 128
MAX_PRIORITY = 1000

TokenIds = Annotated[list[int], Field(fail_fast=True)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=1024)]
MAX_SESSION = 128
"""Characters of a session's name."""
SessionId = Annotated[str, Field(min_length=1, max_length=MAX_SESSION)]
Choices = Annotated[list[str], Field(fail_fast=True)]


class RequestModel(BaseModel):
    """Base of everything that comes in."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class CacheControl(RequestModel):
    """Anthropic's mark: what comes up to here is worth keeping."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class ContentPart(RequestModel):
    """A piece of a message's content; only text can be served so far, which the chat template checks."""

    type: str
    text: str | None = None
    cache_control: CacheControl | None = None


class FunctionCall(RequestModel):
    name: str
    arguments: str = ""
    """JSON, as the model wrote it."""


class ToolCall(RequestModel):
    """A call that the assistant made in an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestModel):
    """A turn. What else it holds goes to the chat template, which also checks roles and kinds of content."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: str
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(RequestModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema."""


class Tool(RequestModel):
    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None
    """Leave it out of the prompt until the model has searched for it."""
    cache_control: CacheControl | None = None


class StreamOptions(RequestModel):
    include_usage: bool | None = None


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BoundaryOption(RequestModel):
    """The end of a part of the prompt, from the boundary before it, and how long that is to be kept."""

    messages: Annotated[int, Field(ge=0, le=MAX_MESSAGES)] | None = None
    """How many messages come before it; 0: only the tools."""
    token: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Or how many tokens."""
    zone: Literal["root", "trunk", "leaf"]
    lease_s: Seconds
    """Seconds from its last use, in which it is evicted after others."""
    priority: Annotated[int, Field(ge=0, le=15)] | None = None
    """The highest goes last: among roots, and among trunk and leaf, where it counts before the zone."""


class OwnOptions(RequestModel):
    """What no other server knows; stands under `deeproot`."""

    exact: bool | None = None
    """Take the ids of an earlier reply only where it came back to the letter."""
    explain: bool | None = None
    """Say in the answer why the prompt was or was not cached."""
    since: Annotated[str, Field(max_length=128)] | None = None
    """The id of an earlier answer with which to compare, for the explanation."""
    session_id: SessionId | None = None
    """Requests of one session follow each other: what the newest leaves of the others is evicted first."""
    lease_s: Seconds | None = None
    """Seconds for which the whole conversation, with the reply, is evicted after others."""
    boundaries: Annotated[list[BoundaryOption], Field(max_length=16)] | None = None


class Amount(RequestModel):
    type: Literal["input_tokens", "tool_uses"]
    value: Annotated[int, Field(ge=0)]


class Tokens(RequestModel):
    type: Literal["input_tokens"] = "input_tokens"
    value: Annotated[int, Field(ge=0)]


class Uses(RequestModel):
    type: Literal["tool_uses"] = "tool_uses"
    value: Annotated[int, Field(ge=0)]


class ContextEdit(RequestModel):
    """Clearing of old tool results, as Anthropic's API has it; see `runtime.chat.clearing`."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Amount | None = None
    keep: Uses | None = None
    clear_at_least: Tokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | None = None


class ContextManagement(RequestModel):
    edits: Annotated[list[ContextEdit], Field(max_length=1)] = []


class JsonSchemaFormat(RequestModel):
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    """Makes no difference: a schema is always enforced."""


class ResponseFormat(RequestModel):
    """What the text of an answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """With json_object, as llama.cpp's server takes it."""


class StructuredOutputsOptions(RequestModel):
    """One of them, as vLLM takes it; see `runtime.structured.options`."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


class GenerationRequest(RequestModel):
    """What chat and text completions share.

    Fields not listed are kept in `model_extra`, so that known but unsupported ones can be refused.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    """Token id (as a string, since JSON has no other keys) -> what is added to its logit."""
    user: str | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    """Requests with a lower one start before others and are preempted after them; 0 if not given."""
    cache_salt: CacheSalt | None = None
    """Requests with different salts share no cached prefix."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsOptions | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Choices | None = None
    ebnf: str | None = None
    deeproot: OwnOptions | None = None


class ChatOptions(GenerationRequest):
    """What a chat completion says beside its conversation."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """Go on with the last message instead of answering it."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None
    """False leaves reasoning in the content."""
    chat_template_kwargs: dict[str, Any] | None = None
    context_management: ContextManagement | None = None


class ChatCompletionRequest(ChatOptions):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True)]
    )
    logprobs: int | None = None
    echo: bool | None = None
    """Begin the text with the prompt."""
    best_of: int | None = None
