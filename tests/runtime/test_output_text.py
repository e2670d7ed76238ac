"""Tokens to text, calls and an end."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.reasoning import ReasoningFormat, ReasoningParser
from deeproot.runtime.chat.reply_events import ReplyEvent, collect
from deeproot.runtime.chat.reply_parser import ReplyParser
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.output_text import OutputText
from deeproot.scheduler.messages import FinishReason, TokenOutput, Usage

END = 257
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_model)


def feed(text: OutputText, ids: Sequence[int], reason: FinishReason) -> list[ReplyEvent]:
    """All ids in order, the last with the reason; when the text is complete, the engine's answer to an abort."""
    events: list[ReplyEvent] = []
    for i, token_id in enumerate(ids):
        last = i == len(ids) - 1
        usage = Usage(prompt=5, cached=2, computed=3, output=i + 1)
        events += text.feed(TokenOutput("r", token_id, reason if last else None, usage if last else None))
        if text.wants_abort:
            # One more token was on its way.
            events += text.feed(TokenOutput("r", 65))
            usage = Usage(prompt=5, cached=2, computed=3, output=i + 2)
            return events + text.feed(TokenOutput("r", None, "abort", usage))
    return events


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, parse_special=False).tolist()
    return ids


def test_an_end_token_is_counted_but_not_shown(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer)
    events = feed(text, [*ids_of(tokenizer, "héllo"), END], "stop")
    assert collect(events).content == "héllo"
    assert text.end is not None
    assert text.end.reason == "stop"
    assert text.end.usage == Usage(prompt=5, cached=2, computed=3, output=7)


def test_an_ordinary_token_that_ends_by_its_id_is_not_shown(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer)
    assert collect(feed(text, ids_of(tokenizer, "abc"), "stop")).content == "ab"


def test_the_last_token_before_the_limit_is_shown(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer)
    assert collect(feed(text, ids_of(tokenizer, "abc"), "length")).content == "abc"


def test_a_text_cut_inside_a_character_ends_in_a_replacement(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer)
    assert collect(feed(text, ids_of(tokenizer, "aé")[:2], "length")).content == "a\ufffd"


def test_a_stop_string_ends_it_before_the_engine_knows(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer, ["STOP"])
    events = feed(text, ids_of(tokenizer, "go STOP on"), "length")
    assert collect(events).content == "go "
    assert text.end is not None
    assert text.end.reason == "stop"
    assert text.end.usage.output == len("go STOP")
    assert text.end.usage.prompt == 5


def test_a_stop_string_with_the_very_last_token(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer, ["STOP"])
    assert collect(feed(text, ids_of(tokenizer, "go STOP"), "length")).content == "go "
    assert text.end is not None
    assert text.end.reason == "stop"


def test_an_engine_failure_is_told(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer)
    text.feed(TokenOutput("r", None, "error", Usage(prompt=5, cached=0, computed=0, output=0), "it broke"))
    assert text.end is not None
    assert text.end.reason == "error"
    assert text.end.error == "it broke"


@pytest.mark.parametrize("single", [False, True])
def test_calls(tokenizer: Tokenizer, single: bool) -> None:
    text = OutputText(tokenizer, parser=ReplyParser(calls=CallParser(HERMES)), single_call=single)
    answer = collect(feed(text, [*ids_of(tokenizer, f"see {CALL}{CALL}"), END], "stop"))
    assert answer.content == "see"
    assert len(answer.calls) == (1 if single else 2)
    assert text.end is not None
    assert text.end.reason == "tool_calls"
    assert text.end.usage.output == len("see ") + (1 if single else 2) * len(CALL) + (0 if single else 1)


def test_calls_before_the_limit_stay_calls_but_it_ends_in_length(tokenizer: Tokenizer) -> None:
    text = OutputText(tokenizer, parser=ReplyParser(calls=CallParser(HERMES)))
    answer = collect(feed(text, ids_of(tokenizer, CALL + CALL[:20]), "length"))
    assert len(answer.calls) == 1
    assert answer.truncated
    assert text.end is not None
    assert text.end.reason == "length"


def test_tokens_of_reasoning_are_counted_with_its_marks(tokenizer: Tokenizer) -> None:
    format = ReasoningFormat("think", "<think>", "</think>")
    reasoning, rest = "<think>\nhm\n</think>", "\n\nYes."
    for opened in (False, True):
        text = OutputText(tokenizer, parser=ReplyParser(ReasoningParser(format, opened=opened)))
        written = reasoning.removeprefix("<think>") if opened else reasoning
        reply = collect(feed(text, [*ids_of(tokenizer, written + rest), END], "stop"))
        assert (reply.reasoning, reply.content) == ("hm", "Yes.")
        assert text.end is not None
        # A mark of several tokens is known when its last one has come.
        assert text.end.reasoning_tokens == len(written) - (0 if opened else len("<think>") - 1)
        assert text.end.usage.output == len(written + rest) + 1


@settings(max_examples=200)
@given(
    content=st.text(alphabet="ab<>é😀 ", max_size=20),
    stops=st.lists(st.text(alphabet="ab<é😀", min_size=1, max_size=3), max_size=3),
    cut=st.integers(0, 60),
)
def test_any_text_is_that_before_its_first_stop(
    tokenizer: Tokenizer, content: str, stops: list[str], cut: int
) -> None:
    ids = ids_of(tokenizer, content)[:cut]
    whole = bytes(b for b in content.encode()[:cut]).decode("utf-8", "replace")
    text = OutputText(tokenizer, stops)
    events = feed(text, [*ids, END], "stop")
    # The first stop string is the one that is complete first; then the longest.
    found = [(whole.find(s) + len(s), whole.find(s)) for s in stops if s in whole]
    assert collect(events).content == (whole[: min(found)[1]] if found else whole)
    assert text.end is not None
    assert text.end.reason == "stop"
