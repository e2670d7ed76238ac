"""Arguments of forced calls in every format: whatever a model would like to write, what is read of it validates."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.formats.registry import TOOL_FORMATS
from deeproot.runtime.chat.formats.tool_format import Plain
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.output_grammar import OutputGrammars, ToolUse

from ..chat.parsing import parse_reply
from .schema_strategies import Schema, parameters
from .vocabulary import SPECIAL, make_backend, reads, write

_BACKEND = make_backend()
_GRAMMARS = {name: OutputGrammars({}, ReplyFormat(format, None)) for name, format in TOOL_FORMATS.items()}


def tool(schema: Schema, **said: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **said}}


def forced(format: str, schema: Schema) -> str:
    grammar = _GRAMMARS[format].make(tools=ToolUse([tool(schema)], "required"))
    assert grammar is not None
    return grammar.text


def arguments_in(format: str, schema: Schema, output: bytes) -> list[str]:
    """The arguments of all calls of a reply that is nothing else."""
    parser = ReplyFormat(TOOL_FORMATS[format], None).parser("", [tool(schema)])
    answer = parse_reply(parser, output.decode())
    assert (answer.content, answer.truncated) == ("", False)
    assert {call.name for call in answer.calls} == {"f"}
    return [call.arguments for call in answer.calls]


def check(format: str, schema: Schema, seed: int) -> None:
    try:
        grammar = forced(format, schema)
    except OptionError:
        assume(False)
    way = TOOL_FORMATS[format].form.arguments
    ending = b"" if isinstance(way, Plain) else way.after_value.encode()
    outputs = [write(_BACKEND, grammar, seed + i, ending=ending) for i in range(2)]
    note(repr(outputs))
    whole = [output for output in outputs if output is not None]
    assume(whole)  # mostly; the health check fails if it is not
    for output in whole:
        for arguments in arguments_in(format, schema, output):
            jsonschema.validate(json.loads(arguments), schema, cls=jsonschema.Draft202012Validator)


def is_json(format: str) -> bool:
    return TOOL_FORMATS[format].form.arguments is Plain.JSON


@pytest.mark.parametrize("format", [name for name in sorted(TOOL_FORMATS) if is_json(name)])
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parameters(), st.integers(0, 2**32))
def test_json_arguments_validate(format: str, schema: Schema, seed: int) -> None:
    check(format, schema, seed)


@pytest.mark.parametrize("format", [name for name in sorted(TOOL_FORMATS) if not is_json(name)])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parameters(), st.integers(0, 2**32))
def test_other_arguments_validate(format: str, schema: Schema, seed: int) -> None:
    check(format, schema, seed)


def of(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def tagged(**texts: str) -> str:
    return "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())


OR_NULL, OR_INT = {"type": ["string", "null"]}, {"type": ["string", "integer"]}
STRINGS = {"type": "array", "items": {"type": "string"}}
TAGGED: list[tuple[Schema, dict[str, str], Any]] = [
    (of(a={"type": "string"}), {"a": 'if a < b:\n  "</p>"\n'}, {"a": 'if a < b:\n  "</p>"\n'}),
    (of(a={"type": "string"}), {"a": ""}, {"a": ""}),
    (of(a={"type": "string"}), {"a": "x</parameter>y"}, None),
    (of(a={"type": "string", "pattern": "b$|^c"}), {"a": "ab"}, {"a": "ab"}),
    (of(a={"type": "string", "pattern": "b$|^c"}), {"a": "bd"}, None),
    (of(a={"type": "string", "maxLength": 2}), {"a": "abc"}, None),
    (of(a={"type": "string", "format": "date"}), {"a": "2024-02-30"}, None),
    (of(a=OR_NULL), {"a": "null"}, {"a": None}),
    (of(a=OR_NULL), {"a": "nulls"}, {"a": "nulls"}),
    (of(a={**OR_NULL, "enum": ["null", "a"]}), {"a": "null"}, None),
    (of(a=OR_INT), {"a": "12"}, {"a": 12}),
    (of(a=OR_INT), {"a": "12 apples"}, {"a": "12 apples"}),
    (of(a={"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 9}]}), {"a": "7"}, {"a": 7}),
    (of(a={"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 9}]}), {"a": "12"}, None),
    (of(a={"anyOf": [{"type": "string"}, STRINGS]}), {"a": '["x"]'}, {"a": ["x"]}),
    (of(a={"anyOf": [{"type": "string"}, STRINGS]}), {"a": "[1]"}, None),
    (of(a=STRINGS), {"a": '["</div>"]'}, {"a": ["</div>"]}),
    (of(a=STRINGS), {"a": '["</parameter>"]'}, None),
    (of(a={"type": "object"}), {"a": '{"<b": [{}]}'}, {"a": {"<b": [{}]}}),
    (of(a={"type": "object"}), {"a": '{"</parameter>": 1}'}, None),
    (of(a={"description": "Anything."}), {"a": "Oslo"}, {"a": "Oslo"}),
    (of(a={"type": "number"}), {"a": "1e999"}, {"a": float("inf")}),
    ({"type": "object"}, {"x": "1", "y": "a b"}, {"x": 1, "y": "a b"}),
    (
        {**of(ab={}), "additionalProperties": {"type": "null"}},
        {"ab": "1", "abc": "null"},
        {"ab": 1, "abc": None},
    ),
    ({**of(ab={}), "additionalProperties": {"type": "null"}}, {"ab": "1", "abc": "2"}, None),
]


@pytest.mark.parametrize(("schema", "texts", "expected"), TAGGED)
def test_texts_between_tags(schema: Schema, texts: dict[str, str], expected: Any) -> None:
    """None: such a text must not be written."""
    output = f"<tool_call>\n<function=f>\n{tagged(**texts)}</function>\n</tool_call>".encode()
    can_come = reads(_BACKEND, forced("qwen3_coder", schema), output)
    assert can_come is (expected is not None)
    if can_come:
        assert [json.loads(a) for a in arguments_in("qwen3_coder", schema, output)] == [expected]


def test_tags_that_are_control_tokens() -> None:
    special = {"</arg_value>": SPECIAL}
    made = OutputGrammars(special, ReplyFormat(TOOL_FORMATS["glm45"], None))
    grammar = made.make(tools=ToolUse([tool(of(a=OR_NULL, b={"type": "integer"}))], "required"))
    assert grammar is not None
    first, second = (
        b"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>",
        b"\n<arg_key>b</arg_key>\n<arg_value>7",
    )
    for text in (b"null", b"a < b"):
        assert reads(_BACKEND, grammar.text, first + text, [SPECIAL], second, [SPECIAL], b"\n</tool_call>")
    assert not reads(
        _BACKEND, grammar.text, first + b"a</arg_value>", [SPECIAL], second, [SPECIAL], b"\n</tool_call>"
    )


PYTHON: list[tuple[Schema, str, Any]] = [
    (of(a={"type": "boolean"}, b={"type": "string"}), 'a=True, b="x\\n"', {"a": True, "b": "x\n"}),
    (of(a={"type": "boolean"}), "a=1", None),
    ({**of(a={}, b={}), "required": ["b"]}, "b=null", {"b": None}),
    ({**of(a={}, b={}), "required": ["a"]}, "a=[]", {"a": []}),
    ({**of(a={}, b={}), "required": ["a"]}, "b=[]", None),
    ({"type": "object"}, 'x=1, y={"z": [2.5]}', {"x": 1, "y": {"z": [2.5]}}),
    ({"type": "object"}, "", {}),
    ({"type": "object"}, "if=1", None),
    (of(a={"type": "number"}), "a=-1e999", {"a": float("-inf")}),
    ({**of(a={"type": "null"}), "additionalProperties": True}, "a=null, ab=1", {"a": None, "ab": 1}),
    ({**of(a={"type": "null"}), "additionalProperties": True}, "a=null, a=1", None),
]


@pytest.mark.parametrize(("schema", "text", "expected"), PYTHON)
def test_arguments_in_python(schema: Schema, text: str, expected: Any) -> None:
    output = f"[f({text})]".encode()
    can_come = reads(_BACKEND, forced("pythonic", schema), output)
    assert can_come is (expected is not None)
    if can_come:
        assert [json.loads(a) for a in arguments_in("pythonic", schema, output)] == [expected]


@pytest.mark.parametrize("format", ["qwen3_coder", "pythonic"])
def test_strict_tools_hold_their_calls_and_others_are_free(format: str) -> None:
    tools = [tool(of(a={"type": "integer"}), strict=True), tool(of(a={"type": "string"}))]
    tools[1]["function"]["name"] = "g"
    grammar = _GRAMMARS[format].make(tools=ToolUse(tools))
    assert grammar is not None
    call = (
        "[{}(a={})]"
        if format == "pythonic"
        else "<tool_call>\n<function={}>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    )
    for text, good in (
        (call.format("f", 1), True),
        (call.format("f", '"x"'), False),
        (call.format("g", '"x"'), True),
        ("Hello", True),
    ):
        assert reads(_BACKEND, grammar.text, text.encode()) is good, text


REFUSED: list[tuple[str, Schema, str]] = [
    ("qwen3_coder", of(**{"a>b": {}}), ".properties.a>b"),
    ("pythonic", of(**{"from": {}}), ".properties.from"),
    ("pythonic", of(**{"e-mail": {}}), ".properties.e-mail"),
    ("glm45", {"allOf": [of(a={})]}, ".allOf"),
    ("pythonic", {"minProperties": 1}, ".minProperties"),
    ("glm45", of(a={"items": {"$ref": "#/properties/b"}}, b={}), ".properties.a.items.$ref"),
    ("glm45", of(a={"type": "string", "allOf": [{"minLength": 1}]}), ".properties.a.allOf"),
    ("glm45", of(a={"type": "string", "pattern": "(^a)|b"}), ".properties.a.pattern"),
    ("glm45", of(a={"enum": ["</arg_value>"]}), ".properties.a"),
    ("glm45", of(a={"type": "array", "items": {"const": "</arg_value>"}}), ".properties.a.items"),
    ("glm45", of(a={"type": "object", "patternProperties": {"^x": {}}}), ".properties.a.patternProperties"),
    (
        "glm45",
        of(a={**of(b={}), "additionalProperties": {"type": "null"}}),
        ".properties.a.additionalProperties",
    ),
    ("hermes", of(a={"type": "number", "exclusiveMinimum": 0, "maximum": 0.1}), ".properties.a"),
]


@pytest.mark.parametrize(("format", "schema", "place"), REFUSED)
def test_what_a_format_cannot_express_is_named(format: str, schema: Schema, place: str) -> None:
    with pytest.raises(OptionError) as caught:
        forced(format, schema)
    assert caught.value.field == "tools[0].function.parameters"
    assert str(caught.value).startswith(f"tools[0].function.parameters{place} cannot be enforced: ")
