"""What a template adds: around each message, and to every prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.items import Item
from deeproot.runtime.context.spans import ChatMessage, Part
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer

USUAL = 8
"""Tokens around a message where the template cannot be asked."""


def message_overhead(template: ChatTemplate, tokens: SegmentTokenizer) -> int:
    """Tokens that the template puts around a message: what a second one adds beyond its content."""
    text = "word"
    one = [ChatMessage("user", (Part(text, 0),), {})]
    more = [*one, ChatMessage("assistant", (Part(text, 1),), {})]
    sizes = []
    try:
        for messages in (one, more):
            spans = template.render(messages, add_generation_prompt=False)
            sizes.append(tokens.join(spans).token_ids.size)
    except TemplateError:
        return USUAL
    return max(0, sizes[1] - sizes[0] - tokens.count(text)) + 2


def tools_overhead(
    template: ChatTemplate,
    tokens: SegmentTokenizer,
    tools: Sequence[Mapping[str, Any]],
    item: Item | None,
    variables: Mapping[str, Any],
) -> int:
    """Tokens of a prompt with these tools and next to nothing else. `item`: where the tools come from."""
    probe = [ChatMessage(role, (Part("x", 0),), {}) for role in ("system", "user")]
    try:
        return tokens.join(template.render(probe, tools=tools, variables=variables)).token_ids.size
    except TemplateError:
        return USUAL + (item.tokens if item is not None else 0)
