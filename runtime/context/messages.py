"""A plan as chat messages: each placement a part, neighbours of one role one message."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from deeproot.runtime.context.items import Item, Placement
from deeproot.runtime.context.spans import ChatMessage, Part

_MERGED = ("system", "developer", "user")
_HOST_WORDS = (
    "artifact",
    "diagnostic",
    "tombstone",
    "status",
    "status_kept",
    "skill",
    "briefing",
    "reminder",
    "archived",
    "record",
)
"""Parts that have the user's role, since there is no other, but are not the user's words."""


def chat_messages(
    placements: Sequence[Placement],
    separator: Callable[[str, str], str],
    *,
    host_words_in_results: bool = False,
) -> list[ChatMessage]:
    """Messages whose parts name the placement that they come from.

    System messages come first, since templates take them nowhere else; user messages that meet are merged, since
    templates want roles to alternate. `separator(left, right)`: what stands between two parts.
    `host_words_in_results`: what the host says behind a tool's result joins that result's message, behind its envelope;
    for templates that take a user's message for a new question and drop the thinking that led up to it.
    """
    ordered = sorted(placements, key=lambda placed: not _is_system(placed.item))
    made: list[ChatMessage] = []
    for placed in ordered:
        item = placed.item
        role = "system" if _is_system(item) else item.role
        last = made[-1] if made else None
        same = (
            last is not None and last.role == role and role in _MERGED and not item.fields and not last.fields
        )
        joins = (
            host_words_in_results and last is not None and last.role == "tool" and item.part in _HOST_WORDS
        )
        if last is not None and (same or joins):
            if not item.text:
                continue
            left = last.parts[-1].text if last.parts else ""
            text = separator(left, item.text) + item.text if left else item.text
            made[-1] = ChatMessage(last.role, (*last.parts, Part(text, item.key)), last.fields)
        else:
            made.append(ChatMessage(role, (Part(item.text, item.key),), item.fields))
    return made


def openai_messages(messages: Sequence[ChatMessage], placements: Sequence[Placement]) -> list[dict[str, Any]]:
    """The same as OpenAI's API takes it. An assistant's message goes back as it came."""
    items: dict[Hashable, Item] = {placed.item.key: placed.item for placed in placements}
    return [_openai_message(message, items) for message in messages]


def _openai_message(message: ChatMessage, items: Mapping[Hashable, Item]) -> dict[str, Any]:
    item = items[message.parts[0].segment]
    content: Any = message.content
    if len(message.parts) == 1 and item.raw_content is not None and message.role != "tool":
        content = item.raw_content
    elif message.role == "assistant" and not content and message.fields.get("tool_calls"):
        content = None
    made: dict[str, Any] = {"role": message.role, "content": content}
    made.update(message.fields)
    return made


def _is_system(item: Item) -> bool:
    return item.role in ("system", "developer")
