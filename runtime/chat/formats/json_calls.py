"""Calls as JSON between marks: `{"name": …, "arguments": {…}}`, alone or in a list."""

import json
from collections.abc import Mapping

from deeproot.runtime.chat.formats.tool_format import CallForm, Reader, Slot, ToolFormat, ToolSchemas
from deeproot.runtime.chat.text_source import NoCall, RawCall, Steps, TextSource

NAMED_ARGUMENTS: tuple[str | Slot, ...] = (
    '{"name": ',
    Slot.NAME_AS_JSON,
    ', "arguments": ',
    Slot.ARGUMENTS,
    "}",
)
"""A call as JSON."""


def call_in(members: Mapping[str, str]) -> RawCall:
    """The call that a JSON object is; NoCall if it is none."""
    arguments = members.get("arguments", members.get("parameters", "{}"))
    raw_name = members.get("name", "")
    if not raw_name.startswith('"') or not arguments.startswith("{"):
        raise NoCall
    return checked_call(json.loads(raw_name), arguments)


def checked_call(name: str, arguments: str, call_id: str | None = None) -> RawCall:
    """A call with a name that can be sent: half of a surrogate pair cannot. NoCall else."""
    if not name or not name.isprintable():
        raise NoCall
    return RawCall(name, arguments, call_id)


def list_of_calls(source: TextSource) -> Steps[None]:
    """The rest of a JSON list of calls, after its bracket; each is given when the next sign has come."""
    while True:
        call = call_in((yield from source.json_object()))
        sign = yield from source.expect(",", "]")
        yield call
        if sign == "]":
            return


def reader(openings: tuple[str, ...], closings: tuple[str, ...]) -> Reader:
    """Reads one call or a list of them after an opening, up to a closing. In place of the closing there may be
    another opening, or the end of the reply."""

    def read(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
        if (yield from source.accept("[")) is not None:
            yield from list_of_calls(source)
            yield from source.accept(*closings, or_end=True)
            return
        call = call_in((yield from source.json_object()))
        if (yield from source.next_is(*closings, *openings, or_end=True)) is None:
            raise NoCall
        yield call
        yield from source.accept(*closings, or_end=True)

    return read


HERMES = ToolFormat(
    name="hermes",
    openings=("<tool_call>",),
    read=reader(("<tool_call>",), ("</tool_call>",)),
    form=CallForm(("<tool_call>\n", *NAMED_ARGUMENTS, "\n</tool_call>")),
    other_marks=("</tool_call>",),
)
"""Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4 and many others."""
