"""Calls whose arguments stand one by one between tags: Qwen3-Coder and GLM."""

import re

from deeproot.runtime.chat.formats.argument_values import arguments_json
from deeproot.runtime.chat.formats.json_calls import checked_call
from deeproot.runtime.chat.formats.tool_format import CallForm, Slot, Tagged, ToolFormat, ToolSchemas
from deeproot.runtime.chat.text_source import NoCall, Steps, TextSource

_NAME = re.compile(r"[^\s<>{}\[\]\"'`]+")
_KEY = re.compile(r"[^<>\n\"]+")

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END = (
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
)
_KEY_OPEN, _KEY_END, _VALUE_OPEN, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def _value(source: TextSource, end: str, following: tuple[str, ...]) -> Steps[str]:
    """Text up to `end`, where one of `following` comes after it: a value may well spell its own end."""
    parts: list[str] = []
    while True:
        text, _ = yield from source.until(end)
        parts.append(text)
        if (yield from source.next_is(*following, or_end=True)) is not None:
            return "".join(parts)
        parts.append(end)


def _read_qwen(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
    if mark == _OPENING:
        yield from source.expect(_FUNCTION)
    name = yield from source.word(_NAME)
    yield from source.expect(">")
    texts: dict[str, str] = {}
    while (yield from source.expect(_PARAMETER, _FUNCTION_END)) == _PARAMETER:
        key = yield from source.word(_KEY)
        yield from source.expect(">")
        text = yield from _value(source, _PARAMETER_END, (_PARAMETER, _FUNCTION_END))
        texts[key] = text.removeprefix("\n").removesuffix("\n")
    yield checked_call(name, arguments_json(texts, schemas.get(name, {})))
    yield from source.accept(_CLOSING, or_end=True)


def _read_glm(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
    name = yield from source.word(_NAME)
    if not name and not source.ended:
        raise NoCall
    texts: dict[str, str] = {}
    while (yield from source.expect(_KEY_OPEN, _CLOSING)) == _KEY_OPEN:
        key = yield from source.word(_KEY)
        yield from source.expect(_KEY_END)
        yield from source.expect(_VALUE_OPEN)
        texts[key.strip()] = yield from _value(source, _VALUE_END, (_KEY_OPEN, _CLOSING))
    yield checked_call(name, arguments_json(texts, schemas.get(name, {})))


QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    (_OPENING, _FUNCTION),
    _read_qwen,
    CallForm(
        (f"{_OPENING}\n{_FUNCTION}", Slot.NAME, ">\n", Slot.ARGUMENTS, f"{_FUNCTION_END}\n{_CLOSING}"),
        arguments=Tagged(_PARAMETER, ">\n", f"\n{_PARAMETER_END}\n"),
    ),
    other_marks=(_CLOSING,),
)
"""Qwen3-Coder."""

GLM45 = ToolFormat(
    "glm45",
    (_OPENING,),
    _read_glm,
    CallForm(
        (_OPENING, Slot.NAME, "\n", Slot.ARGUMENTS, _CLOSING),
        arguments=Tagged(_KEY_OPEN, f"{_KEY_END}\n{_VALUE_OPEN}", f"{_VALUE_END}\n"),
    ),
    other_marks=(_CLOSING, _KEY_OPEN, _KEY_END, _VALUE_OPEN, _VALUE_END),
)
"""GLM-4.5 and later."""
