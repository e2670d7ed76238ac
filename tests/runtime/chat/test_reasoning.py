"""The automaton that takes reasoning out of a reply."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.reasoning import ReasoningFormat, ReasoningParser
from deeproot.runtime.chat.reply_events import ContentDelta, ReasoningDelta, ReplyEvent, collect
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.chat.reply_parser import ReplyParser

from .parsing import parse_reply
from .strategies import cuts

THINK = ReasoningFormat("think", "<think>", "</think>")
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def parser(*, opened: bool = False, ends: tuple[str, ...] = ()) -> ReplyParser:
    return ReplyParser(ReasoningParser(THINK, opened=opened, ends=ends), CallParser(HERMES, call_ids=str))


def brief(text: str, *, opened: bool = False) -> tuple[str, str, int]:
    reply = parse_reply(parser(opened=opened), text)
    return reply.reasoning, reply.content, len(reply.calls)


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "num_calls"),
    [
        ("<think>\nhm\n\nso\n</think>\n\nYes.", "hm\n\nso", "Yes.", 0),
        ("\n<think>hm</think>Yes. ", "hm", "Yes. ", 0),
        ("<think>\n\n</think>\n\nYes.", "", "Yes.", 0),
        ("<think>hm", "hm", "", 0),
        ("<think>\nhm \n", "hm", "", 0),
        ("<think>a </thin b</think> c", "a </thin b", "c", 0),
        (f"<think>\nI call.\n</think>\n\n{CALL}", "I call.", "", 1),
        (f"<think>{CALL}</think>See: {CALL} so", CALL, "See: so", 1),
        # what does not begin with the mark is no reasoning
        ("Say <think>hm</think>", "", "Say <think>hm</think>", 0),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>", 0),
        ("<thin", "", "<thin", 0),
        (" \n", "", " \n", 0),
        ("</think>a", "", "</think>a", 0),
        ("", "", "", 0),
    ],
)
def test_reasoning_and_content(text: str, reasoning: str, content: str, num_calls: int) -> None:
    assert brief(text) == (reasoning, content, num_calls)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("hm\n</think>\n\nYes.", "hm", "Yes."),
        ("<think>\nhm</think>Yes.", "hm", "Yes."),
        ("</think>Yes.", "", "Yes."),
        ("hm", "hm", ""),
        ("\n", "", ""),
        ("<thin", "<thin", ""),
        ("hm</thin", "hm</thin", ""),
    ],
)
def test_a_prompt_that_has_opened_it(text: str, reasoning: str, content: str) -> None:
    assert brief(text, opened=True)[:2] == (reasoning, content)


def test_whether_the_prompt_has_opened_it() -> None:
    for prompt, opened in (
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>", True),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("user: what is <think>?\nassistant:", False),
    ):
        assert THINK.opened_by(prompt) is opened


def test_calls_can_end_it_in_formats_that_say_so() -> None:
    reply = parse_reply(parser(opened=True, ends=("<tool_call>",)), f"I call\n{CALL}")
    assert (reply.reasoning, reply.content, len(reply.calls)) == ("I call", "", 1)


def test_it_is_not_delayed_more_than_needed() -> None:
    p = parser()
    assert p.feed("<think>\nLet") == [ReasoningDelta("Let")]
    assert p.feed(" me <") == [ReasoningDelta(" me")]
    assert p.feed("b>\n") == [ReasoningDelta(" <b>")]
    assert p.in_reasoning
    assert p.feed("</think>\n\nSo") == [ContentDelta("So")]
    assert not p.in_reasoning


def test_it_stays_in_the_content_when_asked() -> None:
    text = "<think>hm</think>\nYes."
    for replies, separate in ((ReplyFormat(HERMES, THINK), False), (ReplyFormat(HERMES, None), True)):
        reply = parse_reply(replies.parser("", separate_reasoning=separate), text)
        assert (reply.reasoning, reply.content) == ("", text)


pieces = st.sampled_from(
    ["<think>", "</think>", "<thi", "</", "nk>", "<", "a", " ", "\n", CALL, "<tool_call>", "é"]
)
replies = st.lists(st.one_of(pieces, st.text(max_size=4)), max_size=12).map("".join)


@settings(max_examples=200, deadline=None)
@given(text=replies, opened=st.booleans(), data=st.data())
def test_cuts_change_nothing(text: str, opened: bool, data: st.DataObject) -> None:
    expected = parse_reply(parser(opened=opened), text)
    for parts in (list(text), data.draw(cuts(text))):
        p = parser(opened=opened)
        events: list[ReplyEvent] = [event for part in parts for event in p.feed(part)]
        assert collect([*events, *p.finish()]) == expected


@settings(max_examples=200, deadline=None)
@given(text=replies, opened=st.booleans())
def test_only_marks_and_white_space_go(text: str, opened: bool) -> None:
    p = ReplyParser(ReasoningParser(THINK, opened=opened))
    reply = parse_reply(p, text)
    shown = "".join((reply.reasoning + reply.content).split())
    whole = "".join(text.split())
    assert shown in {
        whole,
        *(_without(whole, marks) for marks in (["<think>"], ["</think>"], ["<think>", "</think>"])),
    }


def _without(text: str, marks: list[str]) -> str:
    for mark in marks:
        text = text.replace(mark, "", 1)
    return text
