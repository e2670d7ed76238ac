"""The automaton for `<tool_call>` JSON: whatever the cuts, the same content and calls."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.reply_events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    CallTruncated,
    ContentDelta,
    ParsedReply,
    ReplyEvent,
    collect,
)

from .parsing import parse_reply
from .strategies import cuts

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parser() -> CallParser:
    numbers = itertools.count()
    return CallParser(HERMES, call_ids=lambda: f"id{next(numbers)}")


def parse(text: str) -> ParsedReply:
    return parse_reply(parser(), text)


def brief(text: str) -> tuple[str, list[tuple[str, str]], bool]:
    answer = parse(text)
    return answer.content, [(call.name, call.arguments) for call in answer.calls], answer.truncated


def written(name: str, arguments: str) -> str:
    return f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CLOSE}'


W = ("get_weather", '{"city": "Paris"}')
T = ("get_time", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("  just text \n", "  just text \n", []),
        (written(*W), "", [W]),
        (f"Let me look.\n{written(*W)}\n", "Let me look.", [W]),
        (f"{written(*W)}\n{written(*T)}", "", [W, T]),
        (f"a {written(*W)} b\n{written(*T)} \n c \n", "a b \n c \n", [W, T]),
        # order of members, white space, further members, no arguments
        (f'{OPEN}{{ "arguments" :{{"a":1}} ,\n"id": 3, "name":"f"}}{CLOSE}', "", [("f", '{"a":1}')]),
        (f'{OPEN}{{"name": "f"}}{CLOSE}', "", [("f", "{}")]),
        # marks, braces, quotes and escapes inside strings; arguments stay as written
        (
            f'{OPEN}{{"name":"f","arguments":{{"a":"}}{CLOSE}{OPEN}{{\\"\\\\","b":"\\u00e9\\ud83d\\ude00é"}}}}{CLOSE}',
            "",
            [("f", f'{{"a":"}}{CLOSE}{OPEN}{{\\"\\\\","b":"\\u00e9\\ud83d\\ude00é"}}')],
        ),
        (f'{OPEN}{{"name":"\\u0066\\u006f"}}{CLOSE}', "", [("fo", "{}")]),
        # the closing mark forgotten: the next call's opening or the end stand for it
        (f'{OPEN}{{"name":"f"}}\n{OPEN}{{"name":"g"}}', "", [("f", "{}"), ("g", "{}")]),
        (f'{OPEN}{{"name":"f"}}\n', "", [("f", "{}")]),
        (f'{OPEN}{{"name":"f"}}\n</tool_c', "", [("f", "{}")]),
        (f'{OPEN}{{"name":"f"}}\n<tool_c', "\n<tool_c", [("f", "{}")]),
    ],
)
def test_calls_and_content(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert brief(text) == (content, calls, False)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call",
        "a < b, <tool, <tool_ and <tool_cal",
        f"{OPEN} is the mark {CLOSE}",
        f"{OPEN}{CLOSE}",
        f"{OPEN}[]{CLOSE}",
        f"{OPEN}{{}}{CLOSE}",
        f'{OPEN}{{"name": "f", "arguments": {{}} {CLOSE}',
        f"{OPEN}{{'name': 'f'}}{CLOSE}",
        f'{OPEN}{{"name": "f", "arguments": [1]}}{CLOSE}',
        f'{OPEN}{{"name": "f", "arguments": "{{}}"}}{CLOSE}',
        f'{OPEN}{{"name": "", "arguments": {{}}}}{CLOSE}',
        f'{OPEN}{{"name": 3, "arguments": {{}}}}{CLOSE}',
        f'{OPEN}{{"name": "\\ud800"}}{CLOSE}',
        f'{OPEN}{{"name": "f", "arguments": {{"a": NaN}}}}{CLOSE}',
        f'{OPEN}{{"name": "f", "arguments": {{"a": "line\nbreak"}}}}{CLOSE}',
        f'{OPEN}{{"name": "f"}} and so on',
        f'{OPEN}{{"name": "f"}}<tool_box>',
        f"{CLOSE}",
        f" \n{OPEN}\n x",
    ],
)
def test_what_only_looks_like_a_call_is_text(text: str) -> None:
    assert brief(text) == (text, [], False)


def test_a_call_after_a_false_start() -> None:
    assert brief(f"{OPEN}{{oops {written(*W)}") == (f"{OPEN}{{oops", [W], False)
    assert brief(f"{OPEN}{OPEN}{OPEN}\n{written(*W)[len(OPEN) :]}") == (f"{OPEN}{OPEN}", [W], False)
    assert brief(f'{OPEN}{{"name":"f"}}, {written(*W)}') == (f'{OPEN}{{"name":"f"}},', [W], False)


@pytest.mark.parametrize("whole", [written(*W), "see:\n" + written(*T)])
def test_truncated_anywhere(whole: str) -> None:
    """Cut inside the JSON, a call is reported as truncated and all its text is content."""
    start, end = whole.index(OPEN) + len(OPEN), whole.rindex("}")
    for at in range(len(whole)):
        content, calls, truncated = brief(whole[:at])
        assert truncated == (start <= at <= end)
        assert bool(calls) == (at > end)
        if not calls:
            assert content == whole[:at]


def test_order_of_events_and_first_call_before_second_is_whole() -> None:
    p = parser()
    events = p.feed(f"x\n{written(*W)}\n{OPEN}\n" + '{"name"')
    assert events == [
        ContentDelta("x"),
        CallStart(0, "id0", "get_weather"),
        ArgumentsDelta(0, '{"city": "Paris"}'),
        CallEnd(0),
    ]
    assert p.finish() == [CallTruncated(), ContentDelta(f'\n{OPEN}\n{{"name"')]


def test_content_is_not_delayed_more_than_needed() -> None:
    p = parser()
    assert p.feed("Hello") == [ContentDelta("Hello")]
    assert p.feed(" world <") == [ContentDelta(" world")]
    assert p.feed("b>") == [ContentDelta(" <b>")]


def test_ids_are_unique_by_default() -> None:
    answers = [parse_reply(CallParser(HERMES), written(*W) * 2) for _ in range(2)]
    ids = [call.call_id for answer in answers for call in answer.calls]
    assert len(set(ids)) == 4
    assert all(i.startswith("call_") for i in ids)


noise = st.sampled_from(
    [
        OPEN,
        CLOSE,
        "<tool_call",
        "</tool",
        "<",
        ">",
        "{",
        "}",
        '"',
        "\\",
        "\n",
        " ",
        "name",
        "arguments",
        ":",
        ",",
        "1",
        "é😀",
        '{"name": "f", "arguments": {}}',
        '{"name": "g"}',
        '{"x": 1}',
    ]
)
json_values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=6), st.sampled_from([OPEN, CLOSE, '"}', "\\"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
calls = st.builds(
    lambda name, arguments, ascii_only: written(name, json.dumps(arguments, ensure_ascii=ascii_only)),
    st.sampled_from(["f", "get_weather", "naïve"]),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    st.booleans(),
)
answers = st.lists(st.one_of(noise, calls, st.text(max_size=5)), max_size=14).map("".join)


@settings(max_examples=200, deadline=None)
@given(text=answers, data=st.data())
def test_cuts_change_nothing(text: str, data: st.DataObject) -> None:
    expected = parse(text)
    for pieces in (list(text), data.draw(cuts(text))):
        p = parser()
        events: list[ReplyEvent] = [event for piece in pieces for event in p.feed(piece)]
        assert collect([*events, *p.finish()]) == expected


@settings(max_examples=80, deadline=None)
@given(text=answers)
def test_nothing_is_lost(text: str) -> None:
    """Without calls the content is the text; with calls it is the text less the calls and white space."""
    answer = parse(text)
    if not answer.calls:
        assert answer.content == text
    kept = [c for c in text if not c.isspace()]
    rest = iter(kept)
    assert all(c in rest for c in answer.content if not c.isspace())  # in order
    for call in answer.calls:
        assert call.arguments == "{}" or call.arguments in text
        assert isinstance(json.loads(call.arguments), dict)


@settings(max_examples=80, deadline=None)
@given(
    before=st.text(alphabet="ab <>{}\n", max_size=8),
    parts=st.lists(
        st.tuples(
            st.sampled_from(["f", "gé"]), st.dictionaries(st.text(max_size=5), json_values, max_size=3)
        ),
        max_size=4,
    ),
    ascii_only=st.booleans(),
)
def test_calls_come_back_as_written(
    before: str, parts: list[tuple[str, dict[str, object]]], ascii_only: bool
) -> None:
    raw = [(name, json.dumps(arguments, ensure_ascii=ascii_only)) for name, arguments in parts]
    text = before + "\n".join(written(name, arguments) for name, arguments in raw)
    assert brief(text) == (before.rstrip(" \n") if raw else before, raw, False)
