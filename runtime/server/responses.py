"""Bodies of answers, in OpenAI's shapes. `UNSET` fields are left out; None is sent as null."""

import msgspec
from msgspec import UNSET, UnsetType

from deeproot.runtime.explain.report import Explanation


class AppliedEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What of a conversation was cleared, on request."""

    type: str
    cleared_tool_uses: int
    cleared_input_tokens: int
    recomputed_input_tokens: int
    """What clearing costs in this turn: tokens behind the first change, which no cache can hold."""


class KeptReply(msgspec.Struct, frozen=True):
    """Where the reply was appended."""

    id: str
    """Of the working set."""
    num_events: int
    """The reply's own number, the newest of the log."""


class OwnAnswer(msgspec.Struct, frozen=True):
    """What no other server says; stands under `deeproot`."""

    explanations: tuple[Explanation, ...] | UnsetType = UNSET
    """One a prompt."""
    applied_edits: tuple[AppliedEdit, ...] | UnsetType = UNSET
    working_set: KeptReply | UnsetType = UNSET


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageInfo(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class FunctionCallPart(msgspec.Struct, frozen=True):
    """A called function, whole or a piece of it."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "function"
    function: FunctionCallPart


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The first piece of a call has its id, type and name; the others only pieces of the arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCallPart


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same, as newer clients call it."""
    tool_calls: list[ToolCallMessage] | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Of a text completion: four lists alike in length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Characters of the text before each token."""


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a text completion, and of its chunks."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageInfo
    deeproot: OwnAnswer | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageInfo | UnsetType | None = UNSET
    deeproot: OwnAnswer | UnsetType = UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A text completion, and a chunk of one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageInfo | UnsetType | None = UNSET
    deeproot: OwnAnswer | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "deeproot"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ModelCard]
