"""Where in a prompt the runs end that are to be kept."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.engine.eviction import MAX_PRIORITY, EvictionClass
from deeproot.runtime.chat.continuation import ChatContinuation
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.scheduler.messages import Boundary

END = 2**31 - 1
"""In tokens, behind the end of any sequence."""


def tokens_up_to(
    template: ChatTemplate,
    continuation: ChatContinuation,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template_kwargs: Mapping[str, Any],
    ids: Int32Array,
    count: int,
) -> int:
    """About how many tokens of a prompt the tools and the first `count` messages take; 0 if the template does not show them
    alone. ids: the prompt, int32 `[tokens]`."""
    if count >= len(messages):
        return len(ids)
    if not count and not tools:
        return 0
    kwargs = {**template_kwargs, "add_generation_prompt": False, "continue_final_message": False}
    try:
        start = template.rendering(messages[:count], tools, **kwargs)
    except TemplateError:
        return 0
    return continuation.length_of(start, ids)


def in_order(boundaries: Sequence[Boundary]) -> list[Boundary]:
    """By their ends; of several at the same place the one with the longest lease."""
    best: dict[int, Boundary] = {}
    for boundary in boundaries:
        other = best.get(boundary.end)
        if other is None or boundary.lease_s > other.lease_s:
            best[boundary.end] = boundary
    return [best[end] for end in sorted(best)]


def conversation(root: int, newest: int, seconds: float, *, pause: bool) -> list[Boundary]:
    """A lease of a whole conversation behind its root. newest: the token at which the latest messages begin.

    Among pauses the longest go first: if not all can stay, those should that are needed soonest.
    """
    priority = max(0, MAX_PRIORITY - round(2 * math.log2(max(seconds, 1.0)))) if pause else 0
    return [
        Boundary(root, EvictionClass.ROOT),
        Boundary(newest, EvictionClass.TRUNK, seconds, priority, pause),
        Boundary(END, EvictionClass.LEAF, seconds, priority, pause),
    ]


def num_older(messages: Sequence[Mapping[str, Any]]) -> int:
    """Messages before the newest ones of user and tools."""
    count = len(messages)
    while count and messages[count - 1].get("role") in ("user", "tool"):
        count -= 1
    return count
