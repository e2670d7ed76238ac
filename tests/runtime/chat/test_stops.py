"""Stop strings: the first complete one wins, no part of one is shown, cuts change nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.stops import StopMatcher, StopResult

from .strategies import cuts

letters = st.text(alphabet="abc", max_size=30)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4)


def brute_force(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[list[str], str | None]:
    shown, matched = [], None
    for piece in pieces:
        result = matcher.feed(piece)
        shown.append(result.text)
        if result.matched is not None:
            assert matched is None
            matched = result.matched
    return [*shown, matcher.finish()], matched


@settings(max_examples=300, deadline=None)
@given(text=letters, stops=stop_lists, include=st.booleans(), data=st.data())
def test_equals_brute_force_for_any_cuts(
    text: str, stops: list[str], include: bool, data: st.DataObject
) -> None:
    expected = brute_force(text, stops, include)
    for pieces in ([text], list(text), data.draw(cuts(text))):
        shown, matched = run(StopMatcher(stops, include_stop=include), pieces)
        assert ("".join(shown), matched) == expected


@settings(max_examples=200, deadline=None)
@given(text=letters, stops=stop_lists.filter(bool))
def test_never_shows_what_could_be_part_of_a_stop(text: str, stops: list[str]) -> None:
    """Feeding letter by letter, whatever is shown stays right if the text goes on with any stop string's rest."""
    matcher, shown = StopMatcher(stops), ""
    for i, letter in enumerate(text):
        result = matcher.feed(letter)
        shown += result.text
        if result.matched:
            break
        for stop in stops:
            for size in range(1, len(stop)):
                if text[: i + 1].endswith(stop[:size]):
                    assert len(shown) <= i + 1 - size


@settings(max_examples=100, deadline=None)
@given(text=letters, stops=stop_lists)
def test_holds_back_no_more_than_it_must(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    result = matcher.feed(text)
    if result.matched is None:
        held = text[len(result.text) :]
        assert held == "" or any(len(stop) > len(held) and stop.startswith(held) for stop in stops)


def test_across_tokens() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.feed(t).text for t in ["Hi", ".\n", "\nUs", "e"]] == ["Hi", ".", "", ""]
    assert matcher.feed("r: next") == StopResult("", "\n\nUser:")
    assert (matcher.feed("more"), matcher.finish()) == (StopResult(""), "")


def test_false_alarm_is_released() -> None:
    matcher = StopMatcher(["</s>"])
    assert [matcher.feed(t).text for t in ["a</", "b"]] == ["a", "</b"]
    assert matcher.feed("</s").text == ""
    assert matcher.finish() == "</s"


def test_no_stops_hold_nothing() -> None:
    assert StopMatcher([]).feed("abc") == StopResult("abc")


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="stop"):
        StopMatcher(["a", ""])
