"""The terminal filter against pyte, against a cell-by-cell model of a terminal, and on real streams."""

import json
import re

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.filters.base import FilterContext, original_lines
from deeproot.runtime.context.filters.cells import Clusters
from deeproot.runtime.context.filters.terminal import TerminalFilter

from .grid import COLUMNS, HEIGHT, Grid, rows
from .outputs import OUTPUTS


def shown(text: str, height: int = HEIGHT, columns: int = COLUMNS) -> str:
    return TerminalFilter(height=height, columns=columns).apply(text, FilterContext()).text


def by_pyte(text: str, height: int = HEIGHT, columns: int = COLUMNS) -> list[str]:
    screen = pyte.HistoryScreen(columns, height, history=100_000, ratio=0.5)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    lines = [*screen.history.top, *(screen.buffer[y] for y in range(height))]
    return rows("\n".join("".join(line[x].data for x in range(max(line, default=-1) + 1)) for line in lines))


def csi(finals: str, most: int) -> st.SearchStrategy[str]:
    number = st.one_of(st.just(""), st.integers(0, most).map(str))
    return st.tuples(number, st.sampled_from(finals)).map(lambda t: f"\x1b[{t[0]}{t[1]}")


RUNS = st.text("abcXYZ01 ━", min_size=1, max_size=5)
COMMON = st.one_of(
    RUNS,
    RUNS,
    st.sampled_from(
        ["\n", "\n", "\r", "\r\n", "\x08", "\t", "\x1b[m", "\x1b[1;31m", "\x1b[?25l", "\x1b]0;t\x07"]
    ),
    st.sampled_from(
        ["\x1b[0K", "\x1b[1K", "\x1b[2K", "\x1b[K", "\x1b[J", "\x1b[1J", "\x1b[2J", "\x07", "\x1b(B"]
    ),
    csi("ABCDEFGd", 6),
    csi("PX@", 4),
    st.tuples(st.integers(0, 8), st.integers(0, 9)).map(lambda t: f"\x1b[{t[0]};{t[1]}H"),
    st.sampled_from(["\x1bM", "\x1bD"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(COMMON, max_size=40).map("".join))
def test_same_as_pyte(stream: str) -> None:
    assert rows(shown(stream)) == by_pyte(stream)


# Not in COMMON since pyte 0.8.2 errs: insert and delete line (it leaves a row in place when an empty one should
# replace it) and next line (it keeps the column).
FULL = st.one_of(
    csi("LM", 4),
    COMMON.filter(lambda t: "\x1b(" not in t and "\x1b]" not in t and t != "\x07"),
    csi("ST", 8),
    st.sampled_from(["\x1bE", "\x1b7", "\x1b8", "\x1b[s", "\x1b[u", "\x0b", "\x1b[?1049h", "\x1b[?1049l"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(FULL, max_size=40).map("".join))
def test_same_as_the_grid(stream: str) -> None:
    if stream.count("\x1b[?1049h"):
        stream += "\x1b[?1049l"
    assert rows(shown(stream)) == Grid(HEIGHT, COLUMNS).feed(stream)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.text("\x1b[]?0123456789;ABCHJKmhlsuLMPX@T\r\n\x08\x9b\x9d\x07é漢👍\u0301 a")))
def test_any_text_is_taken_and_a_second_pass_changes_nothing(text: str) -> None:
    result = TerminalFilter().apply(text, FilterContext())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", result.text)
    assert TerminalFilter().apply(result.text, FilterContext()).text == result.text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(COMMON, st.just("\n")), max_size=40).map("".join))
def test_lines_outside_of_drops_are_the_input_lines(stream: str) -> None:
    result = TerminalFilter(height=HEIGHT).apply(stream, FilterContext())
    before, after = stream.split("\n"), result.text.split("\n")
    taken = {n for d in result.drops for n in range(d.first, d.last + 1)}
    for n, line in enumerate(after, 1):
        first, last = original_lines([result.drops], n)
        if first == last and first not in taken:
            visible = re.sub(
                r"\x1b\[[0-9;]*m|\x1b\[\?25l|\x1b\]0;t\x07|\x1b\(B|[\r\x07]", "", before[first - 1]
            )
            assert visible == line
    assert sum(d.kept for d in result.drops) + len(before) - len(taken) == len(after)


def test_plain_text_comes_back_itself() -> None:
    text = "a\tb  \n\n漢字 ━━ é\n"
    result = TerminalFilter().apply(text, FilterContext())
    assert result.text is text
    assert result.drops == ()
    assert result.invisible == 0


@pytest.mark.parametrize(
    ("stream", "want"),
    [
        ("10%\r20%\r100%\n", "100%\n"),
        ("|\x08/\x08-\x08done\n", "done\n"),
        ("long line\rshort\x1b[K\nnext", "short\nnext"),
        ("long line\rshort\n", "shortline\n"),
        ("漢字\rab", "ab字"),
        ("漢字\ra", "a 字"),
        ("漢字\x08X", "漢 X"),
        ("e\u0301x\rE", "Ex"),
        ("👍 ok\r\x1b[2Kdone", "done"),
        ("\x1b]8;;http://x/\x07link\x1b]8;;\x07", "link"),
        ("one\ntwo\x1b[1A\r\x1b[2KONE\n\ntail\n", "ONE\ntwo\ntail\n"),
        ("shell$ vi\n\x1b[?1049hfile text\x1b[?1049ldone", "shell$ vi\ndone"),
        ("\x9b31mred\x9b0m", "red"),
        ("cut off \x1b[", "cut off"),
        ("x\x1b[999999999Cy", "x" + " " * 998 + "y"),
    ],
)
def test_examples(stream: str, want: str) -> None:
    assert shown(stream, height=50, columns=1000) == want


def test_rows_out_of_reach_stay() -> None:
    stream = "".join(f"line {i}\n" for i in range(20)) + "\x1b[2J\x1b[Hnew"
    kept = shown(stream, height=5).split("\n")
    assert kept[:16] == [f"line {i}" for i in range(16)]
    assert kept[-1] == "new"


def test_pip_drops_are_named_with_their_lines() -> None:
    text = (OUTPUTS / "pip_progress.txt").read_bytes().decode()
    result = TerminalFilter().apply(text, FilterContext())
    [drop] = result.drops
    assert (drop.kind, drop.first, drop.last, drop.kept) == ("redrawn", 4, 4, 1)
    assert "6.0/6.0 MB" in result.text.split("\n")[3]


RUNS_ON_TERMINAL = [r["file"] for r in json.loads((OUTPUTS / "runs.json").read_text()) if r["terminal"]]


@pytest.mark.parametrize("name", RUNS_ON_TERMINAL)
def test_real_streams_same_as_pyte(name: str) -> None:
    text = (OUTPUTS / name).read_bytes().decode()
    assert rows(shown(text, height=40, columns=400)) == by_pyte(text, 40, 400)


def test_wide_units_survive_a_round_trip() -> None:
    clusters = Clusters()
    text = "a漢e\u0301👍\U00100000b"
    assert clusters.decode(clusters.encode(text)) == text


@pytest.mark.parametrize("wrong", [{"height": 0}, {"columns": 0}])
def test_size_must_be_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TerminalFilter(**wrong)
