"""From Anthropic's messages to the chat completion that says the same."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.messages_api.schemas import (
    Block,
    Content,
    CountTokensRequest,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
    TurnParam,
)
from deeproot.runtime.server.schemas import RequestModel
from deeproot.runtime.server.translated import Translated, translated

Known = TypeVar("Known", bound=RequestModel)

_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
"""What fields of a chat completion are called here."""
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def translate(request: CountTokensRequest) -> Translated:
    """Raises ApiError (400) that names the field for what cannot be served."""
    messages: list[dict[str, Any]] = []
    origins: list[str] = []

    def add(origin: str, made: Sequence[dict[str, Any]]) -> None:
        messages.extend(made)
        origins.extend([origin] * len(made))

    if request.system is not None:
        add("system", [{"role": "system", "content": _texts(request.system, "system")}])
    for i, turn in enumerate(request.messages):
        where = f"messages[{i}]"
        add(where, _turn(turn, where))
    fields: dict[str, Any] = {"model": request.model, "messages": messages}
    if request.tools:
        fields["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    if request.context_management is not None:
        fields["context_management"] = request.context_management.model_dump(exclude_unset=True)
    fields |= _choice(request.tool_choice)
    fields |= _thinking(request)
    if isinstance(request, MessagesRequest):
        fields |= _sampling(request)
    if request.messages[-1].role == "assistant":
        # Anthropic's clients put words into the model's mouth this way.
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return translated(fields, origins, _NAMES)


def _turn(turn: TurnParam, where: str) -> list[dict[str, Any]]:
    if turn.role == "assistant":
        return [_assistant_turn(turn.content, where)]
    if isinstance(turn.content, str) or turn.role == "system":
        return [{"role": turn.role, "content": _texts(turn.content, f"{where}.content")}]
    messages: list[dict[str, Any]] = []
    texts: list[Block] = []

    def flush() -> None:
        if texts:
            messages.append({"role": "user", "content": _texts(list(texts), f"{where}.content")})
            texts.clear()

    for i, block in enumerate(turn.content):
        if block.type == "tool_result":
            flush()
            messages.append(_tool_result(block, f"{where}.content[{i}]"))
        else:
            _text(block, f"{where}.content[{i}]")
            texts.append(block)
    flush()
    return messages or [{"role": "user", "content": ""}]


def _assistant_turn(content: Content, where: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    thinking: list[str] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        field_name = f"{where}.content[{i}]"
        match block.type:
            case "thinking":
                thinking.append(_as(ThinkingBlock, block, field_name).thinking)
            case "redacted_thinking":
                pass  # only Anthropic can read it
            case "tool_use":
                use = _as(ToolUseBlock, block, field_name)
                function = {"name": use.name, "arguments": json.dumps(use.input, ensure_ascii=False)}
                calls.append({"id": use.id, "type": "function", "function": function})
            case _:
                texts.append(_text(block, field_name))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thinking:
        message["reasoning_content"] = "".join(thinking)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_result(block: Block, where: str) -> dict[str, Any]:
    result = _as(ToolResultBlock, block, where)
    content = _texts(result.content or "", f"{where}.content")
    if result.is_error and not content:
        content = "error"
    if _control(block):
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        content = [*parts[:-1], {**parts[-1], **_control(block)}] if parts else content
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}


def _texts(content: Content, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": _text(block, f"{where}[{i}]"), **_control(block)}
        for i, block in enumerate(content)
    ]


def _control(block: Block | ToolDefinition) -> dict[str, Any]:
    control = (block.model_extra or {}).get("cache_control")
    return {} if control is None else {"cache_control": control}


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise invalid(
            f"A block of type {block.type!r} is not supported here: this server takes text, thinking, tool_use and "
            "tool_result.",
            f"{where}.type",
            "unsupported",
        )
    return _as(TextBlock, block, where).text


def _as(model: type[Known], block: Block, where: str) -> Known:
    try:
        return model.model_validate(block.model_dump(exclude_unset=True))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"][:1])
        raise invalid(f"{where}.{name}: {first['msg']}.", f"{where}.{name}", "invalid_value") from None


def _tool(tool: ToolDefinition, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise invalid(
            f"{where}.type {tool.type!r} is a tool that Anthropic runs: this server only passes on tools of type "
            "'custom', which the client runs.",
            f"{where}.type",
            "unsupported",
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or {"type": "object"}}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    chat_tool: dict[str, Any] = {"type": "function", "function": function}
    if tool.defer_loading is not None:
        chat_tool["defer_loading"] = tool.defer_loading
    return {**chat_tool, **_control(tool)}


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    fields: dict[str, Any] = {}
    if choice.type == "tool":
        if not choice.name:
            raise invalid("tool_choice of type 'tool' needs the name of a tool.", "tool_choice.name")
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = _TOOL_CHOICES[choice.type]
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _thinking(request: CountTokensRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    if request.thinking is not None:
        kwargs["enable_thinking"] = request.thinking.type != "disabled"
    if isinstance(request, MessagesRequest):
        kwargs |= request.chat_template_kwargs or {}
    if kwargs:
        fields["chat_template_kwargs"] = kwargs
    if request.output_config is not None and request.output_config.effort is not None:
        fields["reasoning_effort"] = request.output_config.effort
    return fields


def _sampling(request: MessagesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "stream": request.stream,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": request.seed,
        "min_p": request.min_p,
        "ignore_eos": request.ignore_eos,
        "cache_salt": request.cache_salt,
        "stop": request.stop_sequences,
        "deeproot": request.deeproot and request.deeproot.model_dump(exclude_unset=True),
    }
    if request.output_config is not None and request.output_config.format is not None:
        schema = request.output_config.format.json_schema
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": True},
        }
    return {name: value for name, value in fields.items() if value is not None}
