"""Bodies of `/v1/working_sets`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from deeproot.runtime.context.envelope import Defence
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.status.mode import Mode
from deeproot.runtime.context.thinking import Thinking
from deeproot.runtime.server.schemas import MAX_MESSAGES, MAX_TOOLS, ChatOptions, RequestModel, Tool

PolicyName = Literal["three_zones", "sliding_window", "append_only"]
Tokens = Annotated[int, Field(ge=1, le=2**31)]
Words = Annotated[str, Field(max_length=4096)]
EventRole = Literal["system", "developer", "user", "assistant", "tool"]
EventPart = Literal[
    "policy", "constraint", "tools", "demo", "outcome", "usage", "other",
    "status", "todo", "skill", "schemas", "briefing", "branch",
]  # fmt: skip
"""Parts that a client may log. Records and tombstones are made by whoever assembles."""


class BudgetSpec(RequestModel):
    """See `runtime.context.budget.Budget`."""

    total: Tokens
    high: float = 0.80
    low: float = 0.50


class CalledFunction(RequestModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: str = ""
    arguments: str | dict[str, Any] = ""


class MadeCall(RequestModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    id: Words | None = None
    function: CalledFunction


class EventMessage(RequestModel):
    """What an event's message has beside role and content."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: Words | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[MadeCall], Field(fail_fast=True)] | None = None


class EventPartText(RequestModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str


class EventData(RequestModel):
    """Structured facts of an event, as `runtime.context.record` and the importers write them."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: EventRole = "user"
    part: EventPart = "other"
    name: Words = ""
    uri: Words = ""
    message: EventMessage = EventMessage()
    conditions: list[Words] = Field(default_factory=list)
    keep: list[Words] = Field(default_factory=list)
    anchor: bool = False
    content: Literal["text", "null", "absent", "parts"] = "text"
    parts: list[EventPartText] = Field(default_factory=list)
    action: str = ""
    step: dict[str, Any] = Field(default_factory=dict)
    state: str | dict[str, Any] = ""
    mode: Mode = Mode.REPLACE
    names: list[Words] = Field(default_factory=list)


class EventBody(RequestModel):
    """One event, as an export has them a line."""

    kind: EventKind
    text: str | None = None
    base64: str | None = None
    """The payload, where it is no text."""
    data: EventData = EventData()
    call_id: Words | None = None
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**32)] | None = None
    time_ns: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Since 1970; the server's clock if it is not given."""
    blake3: str | None = None
    """Of the payload; checked if it is given."""


class Events(RequestModel):
    """What is to be appended to a log: `events`, then `messages`."""

    events: Annotated[list[EventBody], Field(fail_fast=True)] = Field(default_factory=list)
    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES)] = Field(default_factory=list)
    """In OpenAI's form."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


class NewEvents(Events):
    """`POST /v1/working_sets/{id}/events`."""

    after: Annotated[int, Field(ge=0)] | None = None
    """The number of the newest event that the client knows; a 409 if the log is elsewhere, so that nothing is appended
    twice."""


class CreateWorkingSet(Events):
    """`POST /v1/working_sets`."""

    policy: PolicyName = "three_zones"
    budget: Tokens | BudgetSpec | None = None
    keep_turns: Annotated[int, Field(ge=0, le=10_000)] = 3
    reminder_tokens: Annotated[int, Field(ge=0, le=100_000)] = 100
    fold_over: Tokens | None = 2000
    defence: Defence = Defence.COMBINED
    filters: bool = True
    result_tokens: Tokens | None = 4000
    keep_symbols: Annotated[list[Words], Field(max_length=1000)] = Field(default_factory=list)
    timestamps: bool = False
    call_counter: bool = False
    thinking: Thinking = Thinking.TEMPLATE


class CompleteRequest(NewEvents, ChatOptions):
    """`POST /v1/working_sets/{id}/complete`: a chat completion whose messages and tools are the working set's."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    record: bool = True
    """Append the reply to the log."""
