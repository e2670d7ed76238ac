"""Conversations whose last message is to be gone on with, as transformers' `continue_final_message` has it.

A mark is put behind the last message's text; what the template writes after it is cut off. A space behind the mark
tells whether the template trims the text; if so, the white space before the mark goes too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deeproot.runtime.chat.control_guard import Rendering
from deeproot.runtime.chat.errors import TemplateError

_MARK = "\ufdd6open end\ufdd7"  # no characters, so no text has them
_TAG = f"{_MARK} "


def with_open_end(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with the mark in the last one. Raises TemplateError."""
    last = messages[-1] if messages else {}
    if not isinstance(last, Mapping) or last.get("tool_calls"):
        raise TemplateError(
            "continue_final_message: the last message has tool calls, so there is no text to go on with; "
            "leave continue_final_message out",
            message_index=len(messages) - 1,
        )
    content = last.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": content.replace(_MARK, "") + _TAG}]
    parts = list(content) if isinstance(content, list) else []
    if not parts or not isinstance(parts[-1], Mapping) or not isinstance(parts[-1].get("text"), str):
        raise TemplateError(
            "continue_final_message: the last message has no text to go on with",
            message_index=len(messages) - 1,
            field="content",
        )
    parts[-1] = {**parts[-1], "text": parts[-1]["text"].replace(_MARK, "") + _TAG}
    return [*messages[:-1], {**last, "content": parts}]


def cut_at_open_end(rendering: Rendering) -> Rendering:
    """The rendering up to the mark. Raises TemplateError if the template does not show it."""
    at = rendering.text.rfind(_MARK)
    if at < 0:
        raise TemplateError(
            "continue_final_message: the chat template does not show the last message, so the model cannot go on with "
            "it; leave continue_final_message out",
            field="continue_final_message",
        )
    text = rendering.text[:at]
    return replace(rendering, text=text if rendering.text.startswith(_TAG, at) else text.rstrip())
