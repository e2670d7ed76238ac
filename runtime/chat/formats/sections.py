"""Calls in a section of their own, each between marks: DeepSeek and Kimi."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from deeproot.runtime.chat.formats.json_calls import checked_call
from deeproot.runtime.chat.formats.tool_format import CallForm, Reader, Slot, ToolFormat, ToolSchemas
from deeproot.runtime.chat.text_source import NoCall, RawCall, Steps, TextSource

_NAME = re.compile(r"[^\s<>{}|｜`\"]+")


@dataclass(frozen=True, slots=True)
class Marks:
    section: str
    call: str
    before_arguments: str
    call_end: str
    section_end: str

    @property
    def openings(self) -> tuple[str, ...]:
        """A section; some replies have a call without one."""
        return (self.section, self.call)

    @property
    def others(self) -> tuple[str, ...]:
        return (self.before_arguments, self.call_end, self.section_end)


_DEEPSEEK = Marks(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_KIMI = Marks(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)


def _reader(marks: Marks, read_call: Callable[[TextSource, int], Steps[RawCall]]) -> Reader:
    """`read_call` reads from behind `marks.call` to before `marks.call_end`, given how many calls were before."""

    def read(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
        if mark == marks.section:
            yield from source.expect(marks.call)
        for index in itertools.count():
            call = yield from read_call(source, index)
            if (yield from source.accept(marks.call_end, or_end=True)) is None:
                raise NoCall
            yield call
            if (yield from source.accept(marks.section_end, marks.call, or_end=True)) != marks.call:
                return

    return read


def _deepseek_call(source: TextSource, index: int) -> Steps[RawCall]:
    """`name<sep>{…}`, or the older form with the kind of the tool in front and the arguments in a fence."""
    name = yield from source.word(_NAME)
    yield from source.expect(_DEEPSEEK.before_arguments)
    if (yield from source.next_is("{")) is not None:
        return checked_call(name, (yield from source.json_object()).text)
    name = yield from source.word(_NAME)
    yield from source.expect("```json")
    arguments = (yield from source.json_object()).text
    if (yield from source.accept("```", or_end=True)) is None:
        raise NoCall
    return checked_call(name, arguments)


def _kimi_call(source: TextSource, index: int) -> Steps[RawCall]:
    """`functions.name:0<mark>{…}`; what is before the mark is the call's id, too."""
    call_id = yield from source.word(_NAME)
    yield from source.expect(_KIMI.before_arguments)
    name = re.sub(r":\d+$", "", call_id.removeprefix("functions."))
    if call_id == name:
        call_id = f"functions.{name}:{index}"
    return checked_call(name, (yield from source.json_object()).text, call_id)


def _deepseek(name: str, call: tuple[str | Slot, ...], separator: str) -> ToolFormat:
    form = CallForm(
        (_DEEPSEEK.call, *call, _DEEPSEEK.call_end),
        begin=_DEEPSEEK.section,
        separator=separator,
        end=_DEEPSEEK.section_end,
    )
    return ToolFormat(
        name, _DEEPSEEK.openings, _reader(_DEEPSEEK, _deepseek_call), form, other_marks=_DEEPSEEK.others
    )


DEEPSEEK_V3 = _deepseek(
    "deepseek_v3",
    ("function", _DEEPSEEK.before_arguments, Slot.NAME, "\n```json\n", Slot.ARGUMENTS, "\n```"),
    separator="\n",
)
"""DeepSeek V3 and R1."""

DEEPSEEK_V31 = _deepseek(
    "deepseek_v31", (Slot.NAME, _DEEPSEEK.before_arguments, Slot.ARGUMENTS), separator=""
)
"""DeepSeek V3.1."""

KIMI_K2 = ToolFormat(
    "kimi_k2",
    _KIMI.openings,
    _reader(_KIMI, _kimi_call),
    CallForm(
        (
            _KIMI.call,
            "functions.",
            Slot.NAME,
            ":",
            Slot.INDEX,
            _KIMI.before_arguments,
            Slot.ARGUMENTS,
            _KIMI.call_end,
        ),
        begin=_KIMI.section,
        separator="",
        end=_KIMI.section_end,
    ),
    other_marks=_KIMI.others,
    ends_reasoning=True,
)
"""Kimi K2."""
