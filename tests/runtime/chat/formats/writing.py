"""Writes calls as a format's `CallForm` says: what a model of that format would write."""

import json
from collections.abc import Sequence
from typing import Any

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.formats.tool_format import CallForm, Plain, Slot, ToolFormat
from deeproot.runtime.chat.reply_parser import ReplyParser

from ..parsing import parse_reply

Call = tuple[str, dict[str, Any]]


def written(form: CallForm, calls: Sequence[Call], *, ascii_only: bool = False) -> str:
    parts = [_call(form, name, arguments, i, ascii_only) for i, (name, arguments) in enumerate(calls)]
    return form.begin + form.separator.join(parts) + form.end


def _call(form: CallForm, name: str, arguments: dict[str, Any], index: int, ascii_only: bool) -> str:
    fillings = {
        Slot.NAME: name,
        Slot.NAME_AS_JSON: json.dumps(name, ensure_ascii=ascii_only),
        Slot.INDEX: str(index),
        Slot.CALL_ID: f"abcdefgh{index}",
        Slot.ARGUMENTS: _arguments(form, arguments, ascii_only),
    }
    return "".join(part if isinstance(part, str) else fillings[part] for part in form.call)


def _arguments(form: CallForm, arguments: dict[str, Any], ascii_only: bool) -> str:
    if form.arguments is Plain.JSON:
        return json.dumps(arguments, ensure_ascii=ascii_only)
    if form.arguments is Plain.PYTHON:
        return ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    tags = form.arguments
    assert not isinstance(tags, Plain)
    texts = {
        k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=ascii_only) for k, v in arguments.items()
    }
    return "".join(f"{tags.before_key}{k}{tags.before_value}{v}{tags.after_value}" for k, v in texts.items())


def read(
    format: ToolFormat, text: str, schemas: dict[str, Any] | None = None
) -> tuple[str, list[tuple[str, Any]], bool]:
    """Content, calls with their arguments as objects, and whether it was truncated."""
    reply = parse_reply(ReplyParser(calls=CallParser(format, schemas, call_ids=str)), text)
    return reply.content, [(call.name, json.loads(call.arguments)) for call in reply.calls], reply.truncated
