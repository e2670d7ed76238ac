"""From bodies to events and policies of `runtime.context`, and from replies to events."""

from deeproot.runtime.chat.reply_events import ParsedReply
from deeproot.runtime.context import record
from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.event_log import EventLogError, NewEvent, checked_data
from deeproot.runtime.context.frozen_tools import spell_tools
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.jsonl import payload_of
from deeproot.runtime.context.openai_messages import LogImportError, message_events
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.working_sets_api.schemas import (
    BudgetSpec,
    CreateWorkingSet,
    EventBody,
    Events,
    PolicyName,
)


def new_events(body: Events) -> list[NewEvent]:
    """What a body appends, in order. Raises ApiError (400) that names the field."""
    try:
        made = [_event(event, f"events[{i}]") for i, event in enumerate(body.events)]
        tools = [tool.model_dump(exclude_unset=True) for tool in body.tools] if body.tools else None
        made += message_events(body.messages, tools=tools)
    except LogImportError as error:
        field = str(error).split(" ", 1)[0].rstrip(":")
        raise invalid(f"{error}.", field, "invalid_event") from None
    for i, event in enumerate(made):
        try:
            checked_data(event)
        except EventLogError as error:  # a number that JSON has no word for: parsers take NaN and 1e999
            field = f"events[{i}].data" if i < len(body.events) else "messages"
            raise invalid(f"{field}: {error}.", field, "invalid_event") from None
    return made


def _event(body: EventBody, where: str) -> NewEvent:
    payload = payload_of(body.model_dump(include={"text", "base64", "blake3"}, exclude_none=True), where)
    data = body.data.model_dump(exclude_unset=True)
    if data.get("part") == "tools":
        try:
            spell_tools(payload.decode("utf-8", "replace"))
        except ValueError as error:
            raise LogImportError(f"{where}.text is no list of tools: {error}") from None
    return NewEvent(body.kind, payload, data, body.call_id, body.exit_code, body.time_ns)


def reply_event(reply: ParsedReply) -> NewEvent:
    """The model's message, as `record.assistant` logs it."""
    calls = [call.as_message() for call in reply.calls]
    return record.assistant_event(reply.content, tool_calls=calls, reasoning=reply.reasoning)


def policy_of(body: CreateWorkingSet, max_model_len: int) -> LayoutPolicy:
    """The layout that a body asks for. Raises ApiError (400) that names the field."""
    budget = _budget(body.budget)
    total = budget.total if budget is not None else None
    if total is not None and total >= max_model_len:
        raise invalid(
            f"budget is {total} tokens and this model's window {max_model_len}: leave room for the answer.",
            "budget",
        )
    match body.policy:
        case "append_only":
            return AppendOnly(total)
        case "sliding_window":
            return SlidingWindow(_required(budget, body.policy).total)
        case "three_zones":
            needed = _required(budget, body.policy)
            return ThreeZones(needed, body.keep_turns, body.reminder_tokens, body.fold_over)


def _budget(given: int | BudgetSpec | None) -> Budget | None:
    try:
        if isinstance(given, BudgetSpec):
            return Budget(given.total, given.high, given.low)
        return None if given is None else Budget(given)
    except BudgetError as error:
        raise invalid(f"{error}.", "budget") from None


def _required(budget: Budget | None, name: PolicyName) -> Budget:
    if budget is None:
        raise invalid(f"budget is missing: policy {name} needs a number of tokens.", "budget")
    return budget
