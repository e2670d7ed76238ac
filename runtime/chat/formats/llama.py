"""Llama 3's calls: a reply that is JSON, `{"name": …, "parameters": {…}}`, perhaps behind `<|python_tag|>`."""

from deeproot.runtime.chat.formats.json_calls import call_in
from deeproot.runtime.chat.formats.python_calls import python_call
from deeproot.runtime.chat.formats.tool_format import CallForm, Slot, ToolFormat, ToolSchemas
from deeproot.runtime.chat.text_source import NoCall, RawCall, Steps, TextSource

_PYTHON = "<|python_tag|>"
_KEYS = frozenset({"name", "parameters", "arguments", "type", "id"})


def _read(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
    """Calls with semicolons between them. Without a mark they have to be of known tools, or they are an answer in
    JSON."""
    if mark and (yield from source.next_is("{")) is None:
        yield (yield from _builtin_call(source))
        return
    while True:
        found = yield from source.json_object(None if mark else _KEYS)
        call = call_in(found)
        if not mark and (
            not found.members.keys() & {"parameters", "arguments"} or (schemas and call.name not in schemas)
        ):
            raise NoCall
        yield call
        if (yield from source.accept(";")) is None:
            return


def _builtin_call(source: TextSource) -> Steps[RawCall]:
    """`name.call(key="value")`, as Llama calls the tools that it was trained with."""
    call = yield from python_call(source)
    if not call.name.endswith(".call"):
        raise NoCall
    return RawCall(call.name.removesuffix(".call"), call.arguments)


LLAMA3_JSON = ToolFormat(
    "llama3_json",
    (_PYTHON,),
    _read,
    CallForm(('{"name": ', Slot.NAME_AS_JSON, ', "parameters": ', Slot.ARGUMENTS, "}"), separator="; "),
    start_letters="{",
)
"""Llama 3.1 to 3.3."""
