"""Clears old tool results out of a conversation, on request.

To clear something changes text that is cached, and all behind it is computed anew. So it is not done a little with every
turn, but in strides: when the conversation has grown over the trigger, all results but the newest few go at once, and
then it grows again. Whether a stride was made at some turn depends only on the turns before it, so the same
conversation, longer, begins with the same text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deeproot.runtime.chat.tool_search import NAME as SEARCH

PLACEHOLDER = "[This old result was cleared to save room.]"
Message = Mapping[str, Any]
Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True, slots=True)
class ClearToolUses:
    """What to clear, and when."""

    trigger_tokens: int | None = 100_000
    """More tokens in messages than this start a stride."""
    trigger_uses: int | None = None
    """More uses of tools that are not cleared start one; of both triggers one is given."""
    keep: int = 3
    """Newest uses that stay."""
    clear_at_least: int | None = None
    """Tokens that a stride must free to be worth what is computed anew; None: a tenth of the trigger."""
    exclude: frozenset[str] = frozenset()
    """Tools whose uses stay."""
    clear_inputs: bool = False
    """Whether the arguments of the calls go too."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was cleared, in all strides."""

    messages: tuple[Message, ...]
    num_uses: int = 0
    num_tokens: int = 0
    """How many tokens fewer the messages have."""
    num_behind: int = 0
    """What the newest turn's stride costs: tokens behind the first of what it cleared, which are computed anew."""


@dataclass(slots=True)
class _Walk:
    """The conversation up to some turn."""

    edit: ClearToolUses
    count: Count
    messages: list[Message] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Of tools, by the ids of calls."""
    uses: list[int] = field(default_factory=list)
    """Where results stand that could be cleared."""
    num_uses: int = 0
    num_tokens: int = 0

    def add(self, message: Message) -> None:
        for call in message.get("tool_calls") or ():
            self.names[str(call.get("id"))] = call["function"]["name"]
        if message.get("role") == "tool":
            name = self.names.get(str(message.get("tool_call_id")), "")
            if name != SEARCH and name not in self.edit.exclude:
                self.uses.append(len(self.messages))
        self.messages.append(message)
        self.sizes.append(_size(message, self.count))

    def stride(self) -> int | None:
        """Clear, if it is time to; returns where the first change is."""
        edit = self.edit
        over = edit.trigger_tokens is not None and sum(self.sizes) > edit.trigger_tokens
        over = over or (edit.trigger_uses is not None and len(self.uses) > edit.trigger_uses)
        going = self.uses[: max(0, len(self.uses) - edit.keep)] if over else []
        changed = {at: _cleared(self.messages[at]) for at in going}
        if edit.clear_inputs:
            ids = {str(self.messages[at].get("tool_call_id")) for at in going}
            changed |= {at: m for at in range(len(self.messages)) if (m := self._without_inputs(at, ids))}
        sizes = {at: _size(message, self.count) for at, message in changed.items()}
        freed = sum(self.sizes[at] - size for at, size in sizes.items())
        least = (edit.trigger_tokens or 0) // 10 if edit.clear_at_least is None else edit.clear_at_least
        if not changed or freed < max(1, least):
            return None
        for at, message in changed.items():
            self.messages[at], self.sizes[at] = message, sizes[at]
        self.uses = self.uses[len(going) :]
        self.num_uses += len(going)
        self.num_tokens += freed
        return min(changed)

    def _without_inputs(self, at: int, ids: set[str]) -> Message | None:
        calls = self.messages[at].get("tool_calls") or ()
        if not any(str(call.get("id")) in ids for call in calls):
            return None
        emptied = [
            {**call, "function": {**call["function"], "arguments": "{}"}}
            if str(call.get("id")) in ids
            else call
            for call in calls
        ]
        return {**self.messages[at], "tool_calls": emptied}


def clear_tool_uses(messages: Sequence[Message], edit: ClearToolUses, count: Count) -> Cleared:
    """The conversation with old results cleared; see the module. `messages` in OpenAI's form and well-formed."""
    walk = _Walk(edit, count)
    for message in messages:
        if message.get("role") == "assistant":
            walk.stride()  # here the model was asked
        walk.add(message)
    first = walk.stride()
    behind = sum(walk.sizes[first:]) if first is not None else 0
    return Cleared(tuple(walk.messages), walk.num_uses, walk.num_tokens, behind)


def _cleared(message: Message) -> Message:
    return {**message, "content": PLACEHOLDER}


def _size(message: Message, count: Count) -> int:
    """Tokens of what a message says; those of the template's frame are not counted."""
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
    texts += [call["function"].get("arguments") or "" for call in message.get("tool_calls") or ()]
    return sum(map(count, texts))
