"""Calls as JSON between marks: `{"name": …, "arguments": {…}}`, alone or in a list."""

import json
import re

from deeproot.runtime.chat.formats.tool_format import CallForm, Reader, Slot, ToolFormat, ToolSchemas
from deeproot.runtime.chat.text_source import JsonObject, NoCall, RawCall, Steps, TextSource

NAMED_ARGUMENTS: tuple[str | Slot, ...] = (
    '{"name": ',
    Slot.NAME_AS_JSON,
    ', "arguments": ',
    Slot.ARGUMENTS,
    "}",
)
"""A call as JSON."""


def call_in(found: JsonObject, ids: re.Pattern[str] | None = None) -> RawCall:
    """The call that a JSON object is; NoCall if it is none. `ids`: which of the model's ids are taken over."""
    arguments = found.members.get("arguments", found.members.get("parameters", "{}"))
    raw_name, raw_id = found.members.get("name", ""), found.members.get("id", "").strip('"')
    if not raw_name.startswith('"') or not arguments.startswith("{"):
        raise NoCall
    return checked_call(json.loads(raw_name), arguments, raw_id if ids and ids.fullmatch(raw_id) else None)


def checked_call(name: str, arguments: str, call_id: str | None = None) -> RawCall:
    """A call with a name that can be sent: half of a surrogate pair cannot. NoCall else."""
    if not name or not name.isprintable():
        raise NoCall
    return RawCall(name, arguments, call_id)


def list_of_calls(source: TextSource, ids: re.Pattern[str] | None = None) -> Steps[None]:
    """The rest of a JSON list of calls, after its bracket; each is given when the next sign has come."""
    while True:
        call = call_in((yield from source.json_object()), ids)
        sign = yield from source.expect(",", "]")
        yield call
        if sign == "]":
            return


def reader(openings: tuple[str, ...], closings: tuple[str, ...]) -> Reader:
    """Reads one call or a list of them after an opening, up to a closing. In place of the closing there may be
    another opening, or the end of the reply."""

    def read(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
        if mark.endswith("[") or (yield from source.accept("[")) is not None:
            yield from list_of_calls(source)
        else:
            call = call_in((yield from source.json_object()))
            if (yield from source.next_is(*closings, *openings, or_end=True)) is None:
                raise NoCall
            yield call
        yield from source.accept(*closings, or_end=True)

    return read


def _format(name: str, openings: tuple[str, ...], closings: tuple[str, ...], form: CallForm) -> ToolFormat:
    return ToolFormat(name, openings, reader(openings, closings), form, other_marks=closings)


HERMES = _format(
    "hermes",
    ("<tool_call>",),
    ("</tool_call>",),
    CallForm(("<tool_call>\n", *NAMED_ARGUMENTS, "\n</tool_call>")),
)
"""Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4 and many others."""

SMOLLM2 = _format(
    "smollm2",
    ("<tool_call>",),
    ("</tool_call>",),
    CallForm(NAMED_ARGUMENTS, begin="<tool_call>[", separator=", ", end="]</tool_call>"),
)
"""As SmolLM2's card has it: a list."""

GRANITE = _format(
    "granite",
    ("<|tool_call|>", "<tool_call>"),
    ("<|/tool_call|>", "</tool_call>"),
    CallForm(NAMED_ARGUMENTS, begin="<|tool_call|>[", separator=", ", end="]"),
)
"""Granite 3."""

GRANITE_20B = _format(
    "granite-20b-fc",
    ("<function_call>",),
    ("</function_call>",),
    CallForm(("<function_call> ", *NAMED_ARGUMENTS), separator=" "),
)
"""Granite 20B function calling."""

PHI4 = _format(
    "phi4_mini",
    ("<|tool_call|>", "functools["),
    ("<|/tool_call|>",),
    CallForm(NAMED_ARGUMENTS, begin="<|tool_call|>[", separator=", ", end="]<|/tool_call|>"),
)
"""Phi-4-mini."""
