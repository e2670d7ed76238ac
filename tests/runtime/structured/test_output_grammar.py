"""Grammars of patterns, choices and tool calls: what a random model writes under them, and what they refuse."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.formats.json_calls import HERMES, NAMED_ARGUMENTS, reader
from deeproot.runtime.chat.formats.tool_format import CallForm, Slot, ToolFormat
from deeproot.runtime.chat.reasoning import ReasoningFormat
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.chat.reply_parser import parse_reply
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import OutputGrammars, ToolUse
from deeproot.runtime.structured.schemas import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, checked_schema

from .vocabulary import SPECIAL, make_backend, reads, write

_BACKEND = make_backend()
_CONTROLS = {"<special>": SPECIAL}
_HERMES = ReplyFormat(HERMES, None)
_GRAMMARS = OutputGrammars(_CONTROLS, _HERMES)
_WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Lima"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city"],
    "additionalProperties": False,
}
_SEND: dict[str, Any] = {
    "properties": {"to": {"type": "string", "pattern": "^[a-z]{1,4}@x$"}},
    "required": ["to"],
}
_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": _WEATHER}},
    {"type": "function", "function": {"name": "send", "parameters": _SEND}},
    {"type": "function", "function": {"name": "ping"}},
]
_SCHEMAS = {"weather": _WEATHER, "send": {"type": "object", **_SEND}, "ping": {"maxProperties": 0}}


def text_of(
    structure: StructuredOutputs | None = None, *, of: OutputGrammars = _GRAMMARS, **said: Any
) -> str:
    grammar = of.make(structure, **said)
    assert grammar is not None
    return grammar.text


def use(choice: str | Mapping[str, Any] | None, *, strict: bool = False, **said: Any) -> ToolUse:
    flag = {"strict": True} if strict else {}
    tools = [{**tool, "function": {**tool["function"], **flag}} for tool in _TOOLS]
    return ToolUse(tools, choice, **said)


def written(grammar: str, seed: int) -> str:
    """What a random model writes, from whichever seed on it comes to an end."""
    output = next(found for i in range(50) if (found := write(_BACKEND, grammar, seed + i)) is not None)
    return output.decode()


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.sampled_from(["a", "[a-c]", "\\d", "[^x]", "é", "/", '"', "\\.", "\\n", " "]),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
            inner.map(lambda p: f"({p})?"),
            inner.map(lambda p: f"({p}){{1,3}}"),
        ),
        max_leaves=6,
    ),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_the_whole_pattern_matches(pattern: str, anchored: bool, seed: int) -> None:
    given_pattern = f"^{pattern}$" if anchored else pattern
    output = written(text_of(StructuredOutputs(regex=given_pattern)), seed)
    assert re.fullmatch(pattern, output, re.DOTALL)


def test_an_escaped_dollar_at_the_end_is_no_anchor() -> None:
    assert written(text_of(StructuredOutputs(regex="a\\$")), 0) == "a$"
    assert written(text_of(StructuredOutputs(regex="a\\\\$")), 0) == "a\\"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4), st.integers(0, 2**32))
def test_one_of_the_choices(choices: list[str], seed: int) -> None:
    grammar = text_of(StructuredOutputs(choice=tuple(choices)))
    assert written(grammar, seed) in choices
    assert all(reads(_BACKEND, grammar, choice.encode()) for choice in choices)


@pytest.mark.parametrize(
    "grammar", ['start: "a" /[0-9]+/ "b"?', 'root ::= "a" [0-9]+ tail?\ntail ::= "b"'], ids=["lark", "gbnf"]
)
def test_given_grammars(grammar: str) -> None:
    for seed in range(5):
        assert re.fullmatch("a[0-9]+b?", written(text_of(StructuredOutputs(grammar=grammar)), seed))


def test_json_object_is_an_object() -> None:
    for seed in range(10):
        assert isinstance(json.loads(written(text_of(StructuredOutputs(json_object=True)), seed)), dict)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["required", "weather", "send", "ping"]), st.booleans())
def test_required_calls_are_read_and_validate(seed: int, choice: str, parallel: bool) -> None:
    named = None if choice == "required" else {"type": "function", "function": {"name": choice}}
    grammar = text_of(tools=use(named or "required", parallel=parallel))
    answer = parse_reply(_HERMES.parser("", _TOOLS), written(grammar, seed))
    assert answer.content == ""
    assert not answer.truncated
    assert len(answer.calls) == 1 or (len(answer.calls) > 1 and parallel and named is None)
    for call in answer.calls:
        assert named is None or call.name == choice
        jsonschema.validate(json.loads(call.arguments), _SCHEMAS[call.name])


def test_several_calls_can_follow_each_other() -> None:
    one = b'<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert reads(_BACKEND, text_of(tools=use("required")), one + b"\n" + one)
    assert not reads(_BACKEND, text_of(tools=use("required", parallel=False)), one + b"\n" + one)


def test_strict_tools_leave_text_alone_and_hold_calls() -> None:
    grammar = text_of(tools=use("auto", strict=True))
    call = b'<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    for good in (b"", b"just < text", b"Let me see.\n" + call, call + b"\n" + call):
        assert reads(_BACKEND, grammar, good), good
    for bad in (call.replace(b"Rome", b"Paris"), b"x<tool_call>y", call.replace(b"weather", b"wether")):
        assert not reads(_BACKEND, grammar, bad), bad


def test_tools_that_are_not_strict_may_have_any_arguments_beside_those_that_are() -> None:
    tools = [*use("auto", strict=True).tools[:1], *_TOOLS[1:]]
    grammar = text_of(tools=ToolUse(tools))
    loose = b'<tool_call>\n{"name": "send", "arguments": {"what": 1}}\n</tool_call>'
    assert reads(_BACKEND, grammar, loose)
    assert not reads(_BACKEND, grammar, loose.replace(b"send", b"weather"))


def test_nothing_to_enforce() -> None:
    assert _GRAMMARS.make() is None
    assert _GRAMMARS.make(tools=use("auto")) is None
    assert _GRAMMARS.make(tools=use("none", strict=True)) is None
    assert _GRAMMARS.make(tools=replace(use("auto"), tools=[])) is None


def test_a_form_of_the_text_leaves_calls_possible() -> None:
    grammar = text_of(StructuredOutputs(json=_WEATHER), tools=use("auto"))
    assert reads(_BACKEND, grammar, b'{"city": "Rome"}')
    assert reads(_BACKEND, grammar, b'<tool_call>\n{"name": "send", "arguments": {}}\n</tool_call>')
    assert not reads(_BACKEND, grammar, b"Rome")
    assert not reads(_BACKEND, text_of(StructuredOutputs(json=_WEATHER), tools=use("none")), b"<tool_call>")


@pytest.mark.parametrize("begun", [True, False])
def test_reasoning_may_come_first(begun: bool) -> None:
    thinks = ReplyFormat(HERMES, ReasoningFormat("think", "<think>", "</think>"))
    prompt = "user: Is it?\nassistant: " + "<think>\n" * begun
    grammar = text_of(
        StructuredOutputs(choice=("yes", "no")), of=OutputGrammars(_CONTROLS, thinks), prompt=prompt
    )
    thought = b"Is it <b>? No</think>\n\n"
    assert reads(_BACKEND, grammar, (b"" if begun else b"<think>") + thought + b"yes")
    assert reads(_BACKEND, grammar, b"yes") is not begun
    assert not reads(_BACKEND, grammar, (b"" if begun else b"<think>") + b"</think>maybe")
    in_content = text_of(StructuredOutputs(choice=("yes", "no")), of=OutputGrammars(_CONTROLS, thinks))
    assert not reads(_BACKEND, in_content, b"<think>" + thought + b"yes")


def format_of(form: CallForm, *openings: str, start_letters: str = "") -> OutputGrammars:
    format = ToolFormat("mine", openings, reader(openings, (")",)), form, start_letters=start_letters)
    return OutputGrammars(_CONTROLS, ReplyFormat(format, None))


def test_marks_that_are_control_tokens_are_those_tokens() -> None:
    form = CallForm((Slot.NAME, "(", Slot.ARGUMENTS, ")"), begin="<special>: ", separator=";", end=".")
    made = format_of(form, "<special>")
    grammar = text_of(tools=use("required"), of=made)
    mark = [SPECIAL]
    assert reads(_BACKEND, grammar, mark, b': ping({});send({"to": "a@x"}).')
    assert not reads(_BACKEND, grammar, b"<special>: ping({}).")
    in_text = text_of(tools=use("auto", strict=True), of=made)
    assert reads(_BACKEND, in_text, b"well: ", mark, b": ping({}).")
    assert not reads(_BACKEND, in_text, b"well: ", mark, b": pong({}).")


def test_calls_with_numbers_and_ids() -> None:
    form = CallForm(("<call ", Slot.NAME, ":", Slot.INDEX, " ", Slot.CALL_ID, ">", Slot.ARGUMENTS, "</call>"))
    made = format_of(form, "<call ")
    for grammar in (
        text_of(tools=use("required"), of=made),
        text_of(tools=use("auto", strict=True), of=made),
    ):
        assert reads(
            _BACKEND, grammar, b"<call ping:0 aB3456789>{}</call>\n<call ping:12 aB3456789>{}</call>"
        )
        assert not reads(_BACKEND, grammar, b"<call ping:x aB3456789>{}</call>")
        assert not reads(_BACKEND, grammar, b"<call ping:0 aB34>{}</call>")


def test_formats_without_a_mark() -> None:
    made = format_of(CallForm(NAMED_ARGUMENTS, separator="; "), start_letters="{[")
    grammar = text_of(tools=use("auto", strict=True), of=made)
    assert reads(_BACKEND, grammar, b'{"name": "ping", "arguments": {}}')
    assert reads(_BACKEND, grammar, b"Text with {braces}")
    assert reads(_BACKEND, grammar, b"")
    assert not reads(_BACKEND, grammar, b'{"name": "pong", "arguments": {}}')
    assert not reads(_BACKEND, grammar, b"[1]")


_BAD_STRUCTURES: list[tuple[dict[str, Any], str]] = [
    (
        {"json": {"properties": {"a": {"items": {"type": "strin"}}}}},
        "f.properties.a.items cannot be enforced: Invalid",
    ),
    (
        {"json": {"properties": {"a": {"uniqueItems": True}}}},
        "f.properties.a cannot be enforced: Unimplemented keys",
    ),
    (
        {"json": {"anyOf": [{"type": "string", "pattern": "("}]}},
        "f.anyOf[0] cannot be enforced: regex parse error: unclosed",
    ),
    ({"json": {"$ref": "#/$defs/x"}}, "does not exist"),
    ({"json": {"$ref": "http://127.0.0.1/x"}}, "cannot be enforced"),
    (
        {"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        "oneOf with alternatives that may overlap",
    ),
    ({"json": {"enum": []}}, "Unsatisfiable"),
    ({"json": False}, "Unsatisfiable"),
    ({"json": {"const": "\ud800"}}, "cannot be enforced"),
    ({"json": {"x": "y" * MAX_SCHEMA_BYTES}}, f"at most {MAX_SCHEMA_BYTES} are taken"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": "a" * 40_000}, "more than 32768 characters"),
    ({"regex": "\ud800"}, "surrogate"),
    ({"grammar": "\ud800"}, "surrogate"),
    ({"choice": ("\ud800",)}, "cannot be enforced"),
    ({"choice": ()}, "1 to 4096 texts"),
    ({"choice": ("a", "")}, "empty text"),
    ({"grammar": "nonsense"}, "cannot be enforced"),
    ({"grammar": "root ::= missing"}, "cannot be read as GBNF"),
]


@pytest.mark.parametrize(("given_structure", "words"), _BAD_STRUCTURES)
def test_what_cannot_be_enforced_is_named(given_structure: dict[str, Any], words: str) -> None:
    for _ in range(2):  # the second time from memory
        with pytest.raises(OptionError) as caught:
            _GRAMMARS.make(StructuredOutputs(**given_structure), structure_field="f")
        assert caught.value.field == "f"
        assert words in str(caught.value)


def test_exactly_one_form() -> None:
    for given_structure in ({}, {"json_object": False}, {"regex": "a", "choice": ("b",)}):
        with pytest.raises(OptionError, match="exactly one of"):
            StructuredOutputs(**given_structure)  # type: ignore[arg-type]


def test_a_bad_tool_is_named() -> None:
    tools = [
        *_TOOLS,
        {"type": "function", "function": {"name": "x", "parameters": {"properties": {"a": {"not": {}}}}}},
    ]
    with pytest.raises(OptionError) as caught:
        _GRAMMARS.make(tools=ToolUse(tools, "required"))
    assert caught.value.field == "tools[3].function.parameters"
    assert "tools[3].function.parameters.properties.a cannot" in str(caught.value)
    assert _GRAMMARS.make(tools=ToolUse(tools, "auto")) is None


@pytest.mark.parametrize("choice", ["any", {"type": "function", "function": {}}, {"type": "tool"}, {}])
def test_strange_tool_choices(choice: Any) -> None:
    with pytest.raises(OptionError) as caught:
        _GRAMMARS.make(tools=use(choice))
    assert caught.value.field == "tool_choice"


def test_tool_choices_that_no_tool_fits() -> None:
    for wish in (use({"type": "function", "function": {"name": "pong"}}), replace(use("required"), tools=[])):
        with pytest.raises(OptionError) as caught:
            _GRAMMARS.make(tools=wish)
        assert caught.value.field == "tool_choice"


def test_schemas_too_deep_are_refused_before_anything_recurses() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"not": deep}
    with pytest.raises(OptionError, match=f"more than {MAX_SCHEMA_DEPTH} levels"):
        checked_schema(deep, "f")


def test_formats_that_say_nothing_are_dropped_and_properties_of_that_name_are_not() -> None:
    schema = {
        "properties": {
            "format": {"type": "integer", "format": "int64"},
            "at": {"type": "string", "format": "date"},
        },
        "anyOf": [{"format": "binary"}, {"required": ["format"]}],
        "x-guidance": {"lenient": True},
    }
    assert checked_schema({**schema, "minProperties": 0}, "f") == {
        "minProperties": 0,
        "properties": {"format": {"type": "integer"}, "at": {"type": "string", "format": "date"}},
        "anyOf": [{}, {"required": ["format"]}],
    }
    assert schema["anyOf"] == [{"format": "binary"}, {"required": ["format"]}]


def test_objects_have_the_properties_that_are_listed_unless_more_is_said() -> None:
    a: dict[str, Any] = {"properties": {"a": {"type": "null"}}}
    closed = {**a, "additionalProperties": False}
    assert checked_schema({"items": a}, "f") == {"items": closed}
    assert checked_schema({"anyOf": [a, {"type": "object"}]}, "f") == {"anyOf": [closed, {"type": "object"}]}
    nested = {"properties": {"x": a, "properties": a}, "required": ["x"]}
    assert checked_schema(nested, "f") == {
        "properties": {"x": closed, "properties": closed},
        "required": ["x"],
        "additionalProperties": False,
    }
    for said in (
        {**a, "additionalProperties": True},
        {**a, "patternProperties": {"^x": {}}},
        {**a, "required": ["b"]},
        {"allOf": [a, {"properties": {"b": {}}}]},
        {"$defs": {"x": a}, "properties": {"b": {}}, "$ref": "#/$defs/x"},
        {"properties": {"b": {}}, "anyOf": [a, {"required": ["b"]}]},
        {"type": "object"},
    ):
        assert checked_schema(said, "f") == said


def test_white_space_is_bounded() -> None:
    grammar = text_of(StructuredOutputs(json=_WEATHER))
    assert reads(_BACKEND, grammar, json.dumps({"city": "Rome", "days": 3}, indent=4).encode())
    assert reads(_BACKEND, grammar, json.dumps({"city": "Rome"}, separators=(",", ":")).encode())
    assert not reads(_BACKEND, grammar, b'{\n\n\n"city": "Rome"}')
