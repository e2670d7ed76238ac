"""The pipeline that runs and guards the filters, and any bytes through all of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.events import payload_text
from deeproot.runtime.context.filters.base import (
    Drop,
    Filter,
    FilterContext,
    FilterResult,
    input_lines,
)
from deeproot.runtime.context.filters.hunks import HunkFilter
from deeproot.runtime.context.filters.observation import Action, Observation, ObservationLog
from deeproot.runtime.context.filters.pipeline import Pipeline, default_filters, diff_filters
from deeproot.runtime.context.filters.repeats import RepeatFilter
from deeproot.runtime.context.filters.reread import RereadDiffFilter
from deeproot.runtime.context.filters.terminal import TerminalFilter

from .outputs import ALONE, OUTPUTS, log_of, output


class Losing:
    """A filter that cuts everything after the first line."""

    name = "losing"

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        return FilterResult(text.split("\n")[0], (Drop("cut", 2, text.count("\n") + 1, 0),))


def test_a_stage_that_loses_a_fact_is_refused_and_said() -> None:
    text = output("gcc_errors.txt")
    result = Pipeline((Losing(), TerminalFilter()), count_tokens=len).run(text)
    assert result.text == text
    assert result.stages[0].refused
    assert result.stages[0].tokens_out == result.stages[0].tokens_in == len(text)


def test_an_error_that_a_redraw_would_hide_is_kept() -> None:
    """A terminal would show "ok" only; the guard counts each redrawn form as a line, so the stage is refused."""
    text = "a.c:1:2: error: boom 'x'\r\x1b[Kok\n"
    result = Pipeline(count_tokens=len).run(text)
    assert "a.c:1:2: error: boom 'x'" in result.text
    assert [s.stage for s in result.stages if s.refused] == ["terminal"]


@pytest.mark.parametrize("name", sorted(p.name for p in OUTPUTS.iterdir()))
def test_no_stage_is_refused_on_real_outputs(name: str) -> None:
    text = output(name)
    result = Pipeline(count_tokens=len).run(text)
    assert [s.refused for s in result.stages if s.refused] == []
    assert [s.tokens_in for s in result.stages[1:]] == [s.tokens_out for s in result.stages[:-1]]
    kept = result.text.split("\n")
    for n in range(1, len(kept) + 1, 7):
        first, last = result.original_lines(n)
        assert 1 <= first <= last <= text.count("\n") + 1


FILTERS: list[Filter] = [*default_filters(), *diff_filters()[:1]]
SPICE = st.sampled_from(
    [
        "@@ -1,3 +1,3 @@\n",
        " x\n",
        "+y\n",
        "HTTP/1.1 200 OK\n",
        "< HTTP/1.1 404\n",
        "\x1b[2J",
        "\r",
        "% Total    % Received",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=30), SPICE.map(str.encode)), max_size=20).map(b"".join))
def test_filters_take_any_bytes(payload: bytes) -> None:
    text = payload_text(payload)
    log = log_of((text, "/a", ()), (text, "/a", ()), ("", None, ("/a",)))
    for stage in FILTERS:
        for ctx in (ALONE, FilterContext(log, 0), FilterContext(log, 1)):
            result = stage.apply(text, ctx)
            assert len(result.text.split("\n")) == len(text.split("\n")) + sum(
                d.kept - d.lines for d in result.drops
            )
    Pipeline(count_tokens=len).run(text, FilterContext(log, 1))


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_filters_take_lone_surrogates_and_all_else(text: str) -> None:
    Pipeline(count_tokens=len).run(text + "\udcff\r", FilterContext(log_of((text + "\udcff\r", None, ())), 0))


def test_line_numbers_map_back() -> None:
    drops = (Drop("a", 2, 4, 1), Drop("b", 6, 6, 0), Drop("c", 9, 10, 3))
    assert [input_lines(drops, n) for n in range(1, 10)] == [
        (1, 1), (2, 4), (5, 5), (7, 7), (8, 8), (9, 10), (9, 10), (9, 10), (11, 11),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: RepeatFilter(window=0),
        lambda: HunkFilter(context=-1),
        lambda: HunkFilter(least=0),
        lambda: RereadDiffFilter(most=0),
    ],
)
def test_bad_settings_are_named(make) -> None:  # noqa: ANN001
    with pytest.raises(ValueError, match="give at least "):
        make()


def test_log_order_is_checked() -> None:
    log = ObservationLog([Observation(3, Action(""), "")])
    with pytest.raises(ValueError, match="seq is 3 after 3"):
        log.append(Observation(3, Action(""), ""))
