"""Mistral's calls: a JSON list after `[TOOL_CALLS]`, or, since version 11 of its tokenizer, a name and arguments."""

import re
from uuid import uuid4

from deeproot.runtime.chat.formats.json_calls import NAMED_ARGUMENTS, checked_call, list_of_calls
from deeproot.runtime.chat.formats.tool_format import CallForm, Slot, ToolFormat, ToolSchemas
from deeproot.runtime.chat.text_source import Steps, TextSource

_OPENING, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_NAME = re.compile(r"[^\s\[\]{}\"']+")


def _new_call_id() -> str:
    """Nine letters or digits: the templates refuse other ids."""
    return uuid4().hex[:9]


def _read(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
    if (yield from source.accept("[")) is not None:
        yield from list_of_calls(source, _CALL_ID)
        return
    name, call_id = (yield from source.word(_NAME)), None
    if (yield from source.accept(_ID)) is not None:
        call_id = yield from source.word(_NAME)
    yield from source.accept(_ARGUMENTS)
    arguments = (yield from source.json_object()).text
    yield checked_call(name, arguments, call_id if call_id and _CALL_ID.fullmatch(call_id) else None)


def _format(name: str, form: CallForm) -> ToolFormat:
    return ToolFormat(name, (_OPENING,), _read, form, other_marks=(_ID, _ARGUMENTS), new_call_id=_new_call_id)


MISTRAL = _format("mistral", CallForm(NAMED_ARGUMENTS, begin=f"{_OPENING} [", separator=", ", end="]"))
"""Up to version 7 of its tokenizer."""

MISTRAL_NAMED = _format("mistral_named", CallForm((_OPENING, Slot.NAME, Slot.ARGUMENTS), separator=""))
MISTRAL_ARGS = _format(
    "mistral_args", CallForm((_OPENING, Slot.NAME, _ARGUMENTS, Slot.ARGUMENTS), separator="")
)
MISTRAL_ID = _format(
    "mistral_id",
    CallForm((_OPENING, Slot.NAME, _ID, Slot.CALL_ID, _ARGUMENTS, Slot.ARGUMENTS), separator=""),
)
"""All four are read alike; they differ in how calls are written."""
