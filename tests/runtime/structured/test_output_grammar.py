"""Grammars of patterns, choices and tool calls: what a random model writes under them, and what they refuse."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.formats.json_calls import HERMES, NAMED_ARGUMENTS, reader
from deeproot.runtime.chat.formats.tool_format import CallForm, Slot, ToolFormat
from deeproot.runtime.chat.reasoning import ReasoningFormat
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import OutputGrammars, ToolUse

from ..chat.parsing import parse_reply
from .grammars import BACKEND, CONTROLS, GRAMMARS, REPLIES, SEND, TOOLS, WEATHER, text_of, use
from .vocabulary import SPECIAL, reads, write

_SCHEMAS = {"weather": WEATHER, "send": {"type": "object", **SEND}, "ping": {"maxProperties": 0}}


def written(grammar: str, seed: int) -> str:
    """What a random model writes, from whichever seed on it comes to an end."""
    output = next(found for i in range(50) if (found := write(BACKEND, grammar, seed + i)) is not None)
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
    # Not `re`: its digits are those of an older Unicode than the grammar's.
    assert regex.fullmatch(pattern, output, regex.DOTALL)


def test_an_escaped_dollar_at_the_end_is_no_anchor() -> None:
    assert written(text_of(StructuredOutputs(regex="a\\$")), 0) == "a$"
    assert written(text_of(StructuredOutputs(regex="a\\\\$")), 0) == "a\\"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4), st.integers(0, 2**32))
def test_one_of_the_choices(choices: list[str], seed: int) -> None:
    grammar = text_of(StructuredOutputs(choice=tuple(choices)))
    assert written(grammar, seed) in choices
    assert all(reads(BACKEND, grammar, choice.encode()) for choice in choices)


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
    answer = parse_reply(REPLIES.parser("", TOOLS), written(grammar, seed))
    assert answer.content == ""
    assert not answer.truncated
    assert len(answer.calls) == 1 or (len(answer.calls) > 1 and parallel and named is None)
    for call in answer.calls:
        assert named is None or call.name == choice
        jsonschema.validate(json.loads(call.arguments), _SCHEMAS[call.name])


def test_several_calls_can_follow_each_other() -> None:
    one = b'<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert reads(BACKEND, text_of(tools=use("required")), one + b"\n" + one)
    assert not reads(BACKEND, text_of(tools=use("required", parallel=False)), one + b"\n" + one)


def test_strict_tools_leave_text_alone_and_hold_calls() -> None:
    grammar = text_of(tools=use("auto", strict=True))
    call = b'<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    for good in (b"", b"just < text", b"Let me see.\n" + call, call + b"\n" + call):
        assert reads(BACKEND, grammar, good), good
    for bad in (call.replace(b"Rome", b"Paris"), b"x<tool_call>y", call.replace(b"weather", b"wether")):
        assert not reads(BACKEND, grammar, bad), bad


def test_tools_that_are_not_strict_may_have_any_arguments_beside_those_that_are() -> None:
    tools = [*use("auto", strict=True).tools[:1], *TOOLS[1:]]
    grammar = text_of(tools=ToolUse(tools))
    loose = b'<tool_call>\n{"name": "send", "arguments": {"what": 1}}\n</tool_call>'
    assert reads(BACKEND, grammar, loose)
    assert not reads(BACKEND, grammar, loose.replace(b"send", b"weather"))


def test_nothing_to_enforce() -> None:
    assert GRAMMARS.make() is None
    assert GRAMMARS.make(tools=use("auto")) is None
    assert GRAMMARS.make(tools=use("none", strict=True)) is None
    assert GRAMMARS.make(tools=replace(use("auto"), tools=[])) is None


def test_a_form_of_the_text_leaves_calls_possible() -> None:
    grammar = text_of(StructuredOutputs(json=WEATHER), tools=use("auto"))
    assert reads(BACKEND, grammar, b'{"city": "Rome"}')
    assert reads(BACKEND, grammar, b'<tool_call>\n{"name": "send", "arguments": {}}\n</tool_call>')
    assert not reads(BACKEND, grammar, b"Rome")
    assert not reads(BACKEND, text_of(StructuredOutputs(json=WEATHER), tools=use("none")), b"<tool_call>")


@pytest.mark.parametrize("begun", [True, False])
def test_reasoning_may_come_first(begun: bool) -> None:
    thinks = ReplyFormat(HERMES, ReasoningFormat("think", "<think>", "</think>"))
    prompt = "user: Is it?\nassistant: " + "<think>\n" * begun
    grammar = text_of(
        StructuredOutputs(choice=("yes", "no")), of=OutputGrammars(CONTROLS, thinks), prompt=prompt
    )
    thought = b"Is it <b>? No</think>\n\n"
    assert reads(BACKEND, grammar, (b"" if begun else b"<think>") + thought + b"yes")
    assert reads(BACKEND, grammar, b"yes") is not begun
    assert not reads(BACKEND, grammar, (b"" if begun else b"<think>") + b"</think>maybe")
    in_content = text_of(StructuredOutputs(choice=("yes", "no")), of=OutputGrammars(CONTROLS, thinks))
    assert not reads(BACKEND, in_content, b"<think>" + thought + b"yes")


def format_of(form: CallForm, *openings: str, start_letters: str = "") -> OutputGrammars:
    format = ToolFormat("mine", openings, reader(openings, (")",)), form, start_letters=start_letters)
    return OutputGrammars(CONTROLS, ReplyFormat(format, None))


def test_marks_that_are_control_tokens_are_those_tokens() -> None:
    form = CallForm((Slot.NAME, "(", Slot.ARGUMENTS, ")"), begin="<special>: ", separator=";", end=".")
    made = format_of(form, "<special>")
    grammar = text_of(tools=use("required"), of=made)
    mark = [SPECIAL]
    assert reads(BACKEND, grammar, mark, b': ping({});send({"to": "a@x"}).')
    assert not reads(BACKEND, grammar, b"<special>: ping({}).")
    in_text = text_of(tools=use("auto", strict=True), of=made)
    assert reads(BACKEND, in_text, b"well: ", mark, b": ping({}).")
    assert not reads(BACKEND, in_text, b"well: ", mark, b": pong({}).")


def test_calls_with_numbers_and_ids() -> None:
    form = CallForm(("<call ", Slot.NAME, ":", Slot.INDEX, " ", Slot.CALL_ID, ">", Slot.ARGUMENTS, "</call>"))
    made = format_of(form, "<call ")
    for grammar in (
        text_of(tools=use("required"), of=made),
        text_of(tools=use("auto", strict=True), of=made),
    ):
        assert reads(BACKEND, grammar, b"<call ping:0 aB3456789>{}</call>\n<call ping:12 aB3456789>{}</call>")
        assert not reads(BACKEND, grammar, b"<call ping:x aB3456789>{}</call>")
        assert not reads(BACKEND, grammar, b"<call ping:0 aB34>{}</call>")


def test_formats_without_a_mark() -> None:
    made = format_of(CallForm(NAMED_ARGUMENTS, separator="; "), start_letters="{[")
    grammar = text_of(tools=use("auto", strict=True), of=made)
    assert reads(BACKEND, grammar, b'{"name": "ping", "arguments": {}}')
    assert reads(BACKEND, grammar, b"Text with {braces}")
    assert reads(BACKEND, grammar, b"")
    assert not reads(BACKEND, grammar, b'{"name": "pong", "arguments": {}}')
    assert not reads(BACKEND, grammar, b"[1]")


def test_white_space_is_bounded() -> None:
    grammar = text_of(StructuredOutputs(json=WEATHER))
    assert reads(BACKEND, grammar, json.dumps({"city": "Rome", "days": 3}, indent=4).encode())
    assert reads(BACKEND, grammar, json.dumps({"city": "Rome"}, separators=(",", ":")).encode())
    assert not reads(BACKEND, grammar, b'{\n\n\n"city": "Rome"}')
