"""Files read again as diffs, and hunks with their unchanged lines folded."""

import difflib
import gzip
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.filters.base import (
    FilterContext,
)
from deeproot.runtime.context.filters.hunks import HunkFilter
from deeproot.runtime.context.filters.pipeline import Pipeline, diff_filters
from deeproot.runtime.context.filters.reread import RereadDiffFilter
from deeproot.runtime.context.filters.terminal import TerminalFilter

from .outputs import ALONE, FIXTURES, log_of, rebuild


def numbered(lines: list[str]) -> str:
    return "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines, 1))


def patched(old: list[str], diff: str) -> list[str]:
    """What `patch` makes of the first view and a diff of this filter."""
    out, at = [], 0
    for row in diff.split("\n")[1:]:
        if match := re.match(r"@@ -(\d+)(?:,(\d+))? \+", row):
            start = int(match[1]) - (match[2] != "0")
            out += old[at:start]
            at = start
        elif row[:1] == "+":
            out.append(row[1:])
        else:
            assert old[at] == row[1:]
            out += [row[1:]] if row[:1] == " " else []
            at += 1
    return out + old[at:]


@pytest.mark.parametrize("form", [numbered, "\n".join])
def test_a_file_read_again_is_a_diff_against_the_first_view(form: Callable[[list[str]], str]) -> None:
    old = [f"value_{i} = {i}" for i in range(300)]
    new = [*old[:100], "added = 1", *old[100:200], *old[201:]]
    log = log_of((form(old), "/a", ()), ("", None, ("/a",)), (form(new), "/a", ()), (form(new), "/a", ()))
    pipeline = Pipeline(diff_filters(), count_tokens=len)
    texts = [pipeline.run(log[i].text, FilterContext(log, i)).text for i in range(4)]
    assert texts[0] == log[0].text
    assert texts[2].startswith("[/a as in #10, but for:]\n@@ -98,6 +98,7 @@\n")
    assert len(texts[2]) < len(log[2].text) / 10
    assert patched(old, texts[2]) == new
    assert texts[3] == texts[2]


def test_a_rewritten_file_stays_whole_and_is_the_next_base() -> None:
    old, new = [f"a{i}" for i in range(50)], [f"b{i}" for i in range(50)]
    log = log_of(("\n".join(old), "/a", ()), ("\n".join(new), "/a", ()), ("\n".join([*new, "c"]), "/a", ()))
    texts = [RereadDiffFilter().apply(log[i].text, FilterContext(log, i)).text for i in range(3)]
    assert texts[:2] == [log[0].text, log[1].text]
    assert texts[2].startswith("[/a as in #11, but for:]")


def diff(context: int) -> tuple[str, list[str], list[str]]:
    old = [f"line {i}\n" for i in range(200)]
    new = [*old[:90], "new\n", *old[90:150], *old[152:]]
    return "".join(difflib.unified_diff(old, new, "a", "b", n=context)), old, new


def test_hunks_fold_to_what_git_shows_with_three_lines() -> None:
    wide, _, _ = diff(100)
    result = HunkFilter().apply(wide, ALONE)
    assert result.text.count("lines unchanged]") == 3
    assert "[54 lines unchanged]" in result.text
    narrow = [line for line in diff(3)[0].split("\n") if not line.startswith("@@")]
    assert [line for line in result.text.split("\n") if line[:1] not in "@["] == [
        n for n in narrow if n[:1] not in "@["
    ]
    assert rebuild(wide, result) == wide


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from("abc"), max_size=60),
    st.lists(st.sampled_from("abc"), max_size=60),
    st.integers(0, 40),
    st.integers(0, 4),
)
def test_folded_hunks_can_be_rebuilt_and_keep_every_change(
    old: list[str], new: list[str], wide: int, keep: int
) -> None:
    text = "".join(difflib.unified_diff([o + "\n" for o in old], [n + "\n" for n in new], "a", "b", n=wide))
    result = HunkFilter(context=keep).apply(text, ALONE)
    changes = [line for line in text.split("\n") if line[:1] in ("+", "-", "@")]
    assert [line for line in result.text.split("\n") if line[:1] in ("+", "-", "@")] == changes
    assert rebuild(text, result) == text


def test_what_only_looks_like_a_hunk_is_left() -> None:
    text = "@@ -1,90 +1,90 @@\n" + " same\n" * 20
    assert HunkFilter().apply(text, ALONE).text == text


def test_real_diff_of_the_session() -> None:
    with gzip.open(FIXTURES / "session.jsonl.gz", "rt") as log:
        events = [json.loads(line) for line in log]
    [event] = [e for e in events if e["command"].startswith("git diff")]
    plain = TerminalFilter().apply(event["output"], ALONE).text
    result = HunkFilter().apply(plain, ALONE)
    assert len(result.text) < len(plain) / 3
    assert rebuild(plain, result) == plain
