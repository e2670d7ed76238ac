"""What holds for every format: cuts change nothing, calls come back as written, nothing raises."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.formats.registry import TOOL_FORMATS
from deeproot.runtime.chat.formats.tool_format import Plain, ToolFormat
from deeproot.runtime.chat.reply_events import ContentDelta, ReplyEvent, collect

from ..parsing import parse_reply
from ..strategies import cuts
from .test_documented import DOCUMENTED
from .writing import read, written

FORMATS = sorted(TOOL_FORMATS)
SCHEMAS: dict[str, Any] = {
    "f": {"properties": {"text": {"type": "string"}, "n": {"type": ["integer", "null"]}}},
    "get_weather": {},
}


def noise(format: ToolFormat) -> st.SearchStrategy[str]:
    """Marks, parts of them, and what stands between them."""
    marks = [
        *format.marks,
        *(mark[:-2] for mark in format.marks),
        *(m for m in format.form.call if isinstance(m, str)),
    ]
    others = [
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        '"',
        "'",
        "\\",
        "\n",
        " ",
        ",",
        ";",
        "=",
        "f",
        "`",
        "```\n",
        "1",
        "é😀",
        "n",
    ]
    whole = [
        written(format.form, [("f", {"text": "a", "n": 1})]),
        written(format.form, [("get_weather", {})]),
        '{"name": "f", "arguments": {}}',
        '{"text": "a"}',
    ]
    pieces = [st.sampled_from(kind) for kind in (marks or others, others, whole)]
    return st.lists(st.one_of(*pieces, st.text(max_size=4)), max_size=12).map("".join)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_cuts_change_nothing_and_nothing_raises(name: str, data: st.DataObject) -> None:
    format = TOOL_FORMATS[name]
    text = data.draw(noise(format))
    schemas = data.draw(st.sampled_from([SCHEMAS, {}]))
    expected = parse_reply(CallParser(format, schemas, call_ids=str), text)
    for pieces in (list(text), data.draw(cuts(text))):
        parser = CallParser(format, schemas, call_ids=str)
        events: list[ReplyEvent] = [event for piece in pieces for event in parser.feed(piece)]
        assert collect([*events, *parser.finish()]) == expected
    for call in expected.calls:
        assert isinstance(json.loads(call.arguments), dict)
        call.arguments.encode()
    if not expected.calls:
        assert expected.content == text


# Texts that end in line breaks, or spell a value's end before a tag, are not told apart in formats without quotes.
words = st.text(alphabet="ab1 {}[]()<>\"'\\/=,;:é😀\n", max_size=8).map(lambda text: text.strip("\n"))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), words),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b c"]), inner, max_size=2)
    ),
    max_leaves=5,
)
arguments = st.fixed_dictionaries(
    {}, optional={"text": words, "n": st.one_of(st.none(), st.integers()), "more": values}
)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_calls_come_back_as_written(name: str, data: st.DataObject) -> None:
    format = TOOL_FORMATS[name]
    calls = data.draw(
        st.lists(st.tuples(st.sampled_from(["f", "get_weather"]), arguments), min_size=1, max_size=3)
    )
    if not isinstance(format.form.arguments, Plain):
        # Without a schema, text that looks like JSON is JSON.
        calls = [("f", {k: v for k, v in given.items() if k != "more"}) for _, given in calls]
    before = "" if format.start_letters else data.draw(st.sampled_from(["", "See", "a <b> {c} [d]\n\n"]))
    after = data.draw(st.sampled_from(["", "\n", " and so on"]))
    text = before + written(format.form, calls, ascii_only=data.draw(st.booleans())) + after
    shown = before.rstrip() + (after if after.strip() else "")
    if isinstance(format.form.call[0], str) and after.strip() and name in ("hermes", "granite-20b-fc"):
        text = text.removesuffix(after)  # a call without its closing mark is none if text follows
        shown = before.rstrip()
    assert read(format, text, SCHEMAS) == (shown, calls, False)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, *_ in DOCUMENTED])
def test_truncated_anywhere(name: str, text: str) -> None:
    """Every call that is reported is one of the whole reply; without any, all the text is content."""
    whole = read(TOOL_FORMATS[name], text)[1]
    for size in range(len(text)):
        content, calls, truncated = read(TOOL_FORMATS[name], text[:size])
        assert calls == whole[: len(calls)]
        if not calls:
            assert content == text[:size]
        if truncated:
            assert len(calls) < len(whole)


@pytest.mark.parametrize("name", FORMATS)
def test_openings_do_not_begin_one_another(name: str) -> None:
    openings = TOOL_FORMATS[name].openings
    assert not any(a != b and a.startswith(b) for a in openings for b in openings)


@pytest.mark.parametrize("name", FORMATS)
def test_content_is_not_delayed(name: str) -> None:
    parser = CallParser(TOOL_FORMATS[name])
    assert parser.feed("Hello") == [ContentDelta("Hello")]
    assert parser.feed(" there") == [ContentDelta(" there")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_long_value_takes_time_in_proportion(name: str) -> None:
    """Fed in small pieces, so that work over all that came before would show as minutes."""
    text = written(TOOL_FORMATS[name].form, [("f", {"text": "x < y, " * 20_000})])
    parser = CallParser(TOOL_FORMATS[name], SCHEMAS)
    events = [event for at in range(0, len(text), 4) for event in parser.feed(text[at : at + 4])]
    (call,) = collect([*events, *parser.finish()]).calls
    assert json.loads(call.arguments) == {"text": "x < y, " * 20_000}
