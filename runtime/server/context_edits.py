"""`context_management` of a chat completion: what is asked for, done, and told."""

import dataclasses

from deeproot.runtime.chat.clearing import ClearToolUses, clear_tool_uses
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.explain.history import Chat
from deeproot.runtime.server.responses import AppliedEdit
from deeproot.runtime.server.schemas import ContextEdit, ContextManagement


def edited(
    chat: Chat, asked: ContextManagement | None, tokenizer: Tokenizer
) -> tuple[Chat, tuple[AppliedEdit, ...] | None]:
    """The conversation with old tool results cleared, and the account of it; None if nothing was asked for."""
    if asked is None:
        return chat, None
    if not asked.edits:
        return chat, ()
    (edit,) = asked.edits

    def count(text: str) -> int:
        return len(tokenizer.encode(text, parse_special=False))

    done = clear_tool_uses(chat.messages, _options(edit), count)
    applied = AppliedEdit(
        type=edit.type,
        cleared_tool_uses=done.num_uses,
        cleared_input_tokens=done.num_tokens,
        recomputed_input_tokens=done.num_behind,
    )
    return dataclasses.replace(chat, messages=done.messages), (applied,) if done.num_uses else ()


def _options(edit: ContextEdit) -> ClearToolUses:
    options = ClearToolUses(
        exclude=frozenset(edit.exclude_tools or ()), clear_inputs=bool(edit.clear_tool_inputs)
    )
    if edit.trigger is not None and edit.trigger.type == "input_tokens":
        options = dataclasses.replace(options, trigger_tokens=edit.trigger.value)
    elif edit.trigger is not None:
        options = dataclasses.replace(options, trigger_tokens=None, trigger_uses=edit.trigger.value)
    if edit.keep is not None:
        options = dataclasses.replace(options, keep=edit.keep.value)
    if edit.clear_at_least is not None:
        options = dataclasses.replace(options, clear_at_least=edit.clear_at_least.value)
    return options
