"""What model cards and templates document of each format, and what is to be read in it, both written by hand."""

from typing import Any

import pytest

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.formats.registry import TOOL_FORMATS

from ..parsing import parse_reply
from .writing import read

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
SCHEMAS: dict[str, Any] = {"get_weather": WEATHER, "get_time": {}}
PARIS = ("get_weather", {"city": "Paris"})
TIME = ("get_time", dict[str, Any]())

DOCUMENTED: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    (
        "hermes",
        'Both.\n<tool_call>\n{"arguments": {"city": "Paris"}, "name": "get_weather"}\n</tool_call>\n<tool_call>\n'
        '{"name": "get_time", "arguments": {}}\n</tool_call>',
        "Both.",
        [PARIS, TIME],
    ),
    (
        "smollm2",
        '<tool_call>[\n{"name": "get_weather", "arguments": {"city": "Paris"}},\n'
        '{"name": "get_time", "arguments": {}}\n]</tool_call>',
        "",
        [PARIS, TIME],
    ),
    (
        "qwen3_coder",
        "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        "I look.",
        [("get_weather", {"city": "Paris", "days": 3})],
    ),
    ("qwen3_coder", "<function=get_time>\n</function>\n</tool_call>", "", [TIME]),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\na\n\n b </parameter> c\n</parameter>\n</function>\n</tool_call>",
        "",
        [("get_weather", {"city": "a\n\n b </parameter> c"})],
    ),
    (
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
        "",
        [("get_weather", {"city": "Paris", "days": 3}), TIME],
    ),
    ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", "", [PARIS]),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": {}}',
        "",
        [PARIS, TIME],
    ),
    ("llama3_json", '<|python_tag|>brave_search.call(query="deep roots")', "", [("brave_search", {"query": "deep roots"})]),
    (
        "pythonic",
        "[get_weather(city='Paris', days=3), get_time()]",
        "",
        [("get_weather", {"city": "Paris", "days": 3}), TIME],
    ),
    ("pythonic", '<|python_start|>[get_weather(city="Paris")]<|python_end|>', "", [PARIS]),
    (
        "pythonic",
        "[get_weather(city='It\\'s (1)]', days=-1, x=[True, None, {'a': (1.5, \"b\")}, false])]",
        "",
        [("get_weather", {"city": "It's (1)]", "days": -1, "x": [True, None, {"a": [1.5, "b"]}, False]})],
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {}}]',
        "",
        [PARIS, TIME],
    ),
    ("mistral", 'Yes.[TOOL_CALLS]get_weather{"city": "Paris"}[TOOL_CALLS]get_time{}', "Yes.", [PARIS, TIME]),
    ("mistral_args", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "", [PARIS]),
    ("mistral_id", '[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Paris"}', "", [PARIS]),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [PARIS, TIME],
    ),
    (
        "deepseek_v31",
        'I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "I look.",
        [PARIS, TIME],
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [PARIS, TIME],
    ),
    ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    ("granite", '<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    (
        "granite-20b-fc",
        '<function_call> {"name": "get_weather", "arguments": {"city": "Paris"}} <function_call> {"name": "get_time", '
        '"arguments": {}}',
        "",
        [PARIS, TIME],
    ),
    (
        "phi4_mini",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>',
        "",
        [PARIS],
    ),
    ("phi4_mini", 'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), DOCUMENTED)
def test_documented(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    assert read(TOOL_FORMATS[name], text, SCHEMAS) == (content, calls, False)


def test_every_format_is_documented() -> None:
    assert {name for name, *_ in DOCUMENTED} | {"mistral_named"} == set(TOOL_FORMATS)


# What looks like a call, and is none, in each format: the text comes back whole.
TEXTS: list[tuple[str, str]] = [
    ("qwen3_coder", "<tool_call> is how it starts, <function=f> is next"),
    ("qwen3_coder", "<function=f>\nx</function>"),
    ("qwen3_coder", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
    ("glm45", "<tool_call> is how it starts"),
    ("glm45", "<tool_call>\n</tool_call>"),
    ("llama3_json", '{"answer": 42}'),
    ("llama3_json", '{"name": "Bob", "parameters": {}}'),
    ("llama3_json", '{"name": "get_time"}'),
    ("llama3_json", 'So {"name": "get_time", "parameters": {}}'),
    ("llama3_json", "<|python_tag|>print(1)"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[a link](https://example.org)"),
    ("pythonic", "[rm(path='x')]"),
    ("pythonic", "[get_time(1)]"),
    ("pythonic", "[get_time(x=open('a'))]"),
    ("pythonic", "[get_time(x='\\ud800')]"),
    ("pythonic", "[get_time(x=1j)]"),
    ("pythonic", "[get_time(x={1: 2})]"),
    ("pythonic", "[get_time(x=-True)]"),
    ("pythonic", "[get_time(x=f'{1}')]"),
    ("pythonic", "[get_time(**{'x': 1})]"),
    ("mistral", "[TOOL_CALLS] is the mark"),
    ("mistral", "[TOOL_CALLS][]"),
    ("mistral", "[TOOL_CALLS]get_time[1]"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜> is the mark"),
    (
        "deepseek_v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n[]\n```<｜tool▁call▁end｜>",
    ),
    ("kimi_k2", "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>no<|tool_call_end|>"),
    ("granite", "<|tool_call|> is the mark"),
    ("phi4_mini", "from functools import partial; functools[0]"),
]


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_what_only_looks_like_a_call_is_text(name: str, text: str) -> None:
    assert read(TOOL_FORMATS[name], text, SCHEMAS) == (text, [], False)


@pytest.mark.parametrize(
    ("before", "is_code"),
    [
        ("As in:\n```xml\n", True),
        ("```\na\n```\n", False),
        ("~~~~\n```\n~~~\n", True),
        ("~~~\n~~~~\n", False),
        ("The form is `", True),
        ("The `form` is ", False),
        ("`a\n", False),
        ("```a``` is ", False),
        ("  ```py\nx\n  ```  \n", False),
        ("```\n``` no\n", True),
    ],
)
def test_a_call_in_markdown_code_is_an_example(before: str, is_code: bool) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    content, calls, _ = read(TOOL_FORMATS["hermes"], before + call)
    assert (content, calls) == ((before + call, []) if is_code else (before.rstrip(), [("f", {})]))


def test_ids_as_each_format_wants_them() -> None:
    kimi = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    for name, text, expected in (
        ("kimi_k2", kimi.format("functions.f:7"), "functions.f:7"),
        ("kimi_k2", kimi.format("f"), "functions.f:0"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}", "a1B2c3D4e"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "a1B2c3D4e"}]', "a1B2c3D4e"),
    ):
        (call,) = parse_reply(CallParser(TOOL_FORMATS[name]), text).calls
        assert (call.name, call.call_id) == ("f", expected)
    for text in (
        "[TOOL_CALLS]f{}",
        "[TOOL_CALLS]f[CALL_ID]x[ARGS]{}",
        '[TOOL_CALLS][{"name": "f", "id": 3}]',
    ):
        (call,) = parse_reply(CallParser(TOOL_FORMATS["mistral"]), text).calls
        assert len(call.call_id) == 9
        assert call.call_id.isalnum()
    twice = parse_reply(CallParser(TOOL_FORMATS["kimi_k2"]), kimi.format("functions.f:0") * 2).calls
    assert twice[0].call_id != twice[1].call_id
