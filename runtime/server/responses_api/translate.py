"""From a Responses request to the chat completion that says the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.server.errors import ApiError, invalid
from deeproot.runtime.server.responses_api.items import Item, messages_of
from deeproot.runtime.server.responses_api.schemas import ResponsesRequest, TextConfig, ToolDefinition
from deeproot.runtime.server.translated import Translated, translated
from deeproot.runtime.server.unsupported import refuse_unsupported

_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "prompt": (),
    "truncation": ("disabled",),
    "moderation": (),
}
"""Field -> the values that ask for nothing."""


def input_items(body: ResponsesRequest) -> list[Item]:
    """The request's own input, as items."""
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}] if body.input else []
    return [item.model_dump(exclude_unset=True) for item in body.input]


def translate(body: ResponsesRequest, earlier: Sequence[Item]) -> Translated:
    """`earlier`: the items of the responses that this one follows. Raises ApiError (400) that names the field."""
    refuse_unsupported(body.model_extra or {}, _UNSUPPORTED)
    placed = [("previous_response_id", item) for item in earlier]
    one = isinstance(body.input, str)
    placed += [("input" if one else f"input[{i}]", item) for i, item in enumerate(input_items(body))]
    messages, origins = messages_of(placed)
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
        origins.insert(0, "instructions")
    if not messages:
        raise invalid("input is empty: give a string, or a list of items.", "input")
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "user": body.user,
        "seed": body.seed,
        "min_p": body.min_p,
        "ignore_eos": body.ignore_eos,
        "cache_salt": body.cache_salt,
        "chat_template_kwargs": body.chat_template_kwargs,
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "tools": [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())] or None,
        "tool_choice": _choice(body.tool_choice),
        "response_format": _format(body.text),
        **_logprobs(body),
        "deeproot": body.deeproot and body.deeproot.model_dump(exclude_unset=True),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return translated(given, origins, _NAMES)


LOGPROBS = "message.output_text.logprobs"
"""What `include` names to have them."""
_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""What fields of a chat completion are called here."""


def wants_logprobs(body: ResponsesRequest) -> bool:
    return LOGPROBS in (body.include or ())


def _logprobs(body: ResponsesRequest) -> dict[str, Any]:
    if wants_logprobs(body):
        return {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.top_logprobs:
        raise invalid(f"top_logprobs needs '{LOGPROBS}' among include.", "top_logprobs")
    return {}


def _tool(tool: ToolDefinition, where: str) -> dict[str, Any]:
    if tool.type != "function":
        raise invalid(
            f"A tool of type {tool.type!r} is not supported: this server only passes on functions, which the client "
            "runs.",
            f"{where}.type",
            "unsupported",
        )
    if tool.name is None:
        raise invalid("A function needs a name.", f"{where}.name")
    function = tool.model_dump(include={"name", "description", "parameters", "strict"}, exclude_none=True)
    chat_tool: dict[str, Any] = {"type": "function", "function": function}
    if tool.defer_loading is not None:
        chat_tool["defer_loading"] = tool.defer_loading
    return chat_tool


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise _bad_choice()
    return {"type": "function", "function": {"name": choice["name"]}}


def _bad_choice() -> ApiError:
    return invalid(
        "tool_choice can be 'auto', 'none', 'required', or {\"type\": \"function\", \"name\": …}.",
        "tool_choice",
    )


def _format(text: TextConfig | None) -> dict[str, Any] | None:
    if text is None or text.format is None or text.format.type == "text":
        return None
    wanted = text.format
    if wanted.type == "json_object":
        return {"type": "json_object"}
    if wanted.json_schema is None:
        raise invalid("text.format of type json_schema needs a schema.", "text.format.schema")
    schema = {"name": wanted.name or "output", "schema": wanted.json_schema, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": {k: v for k, v in schema.items() if v is not None}}
