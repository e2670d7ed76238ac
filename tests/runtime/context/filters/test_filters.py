"""Headers, repeats, hunks, superseded reads, actions, and the pipeline that runs and guards them."""

import difflib
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.filters.actions import ActionReader
from deeproot.runtime.context.filters.base import (
    Drop,
    Filter,
    FilterContext,
    FilterResult,
    input_lines,
    to_text,
)
from deeproot.runtime.context.filters.headers import HeaderFilter
from deeproot.runtime.context.filters.hunks import HunkFilter
from deeproot.runtime.context.filters.observation import Action, Observation, ObservationLog
from deeproot.runtime.context.filters.pipeline import Pipeline, default_filters, diff_filters
from deeproot.runtime.context.filters.repeats import RepeatFilter
from deeproot.runtime.context.filters.reread import RereadDiffFilter
from deeproot.runtime.context.filters.superseded import SupersededReadFilter
from deeproot.runtime.context.filters.terminal import TerminalFilter

FIXTURES = Path(__file__).parents[1] / "fixtures"
OUTPUTS = FIXTURES / "tool_outputs"
ALONE = FilterContext()


def output(name: str) -> str:
    return to_text((OUTPUTS / name).read_bytes())


def headers(name: str) -> str:
    return HeaderFilter().apply(TerminalFilter().apply(output(name), ALONE).text, ALONE).text


def rebuild(text: str, result: FilterResult) -> str:
    """The input again, from the output and from the input's dropped lines alone."""
    lines, out, rebuilt, at = text.split("\n"), result.text.split("\n"), [], 0
    done = 0
    for drop in result.drops:
        same = drop.first - 1 - done
        rebuilt += out[at : at + same] + lines[drop.first - 1 : drop.last]
        at, done = at + same + drop.kept, drop.last
    return "\n".join(rebuilt + out[at:])


def test_curl_keeps_request_status_and_address() -> None:
    kept = headers("curl_verbose.txt")
    assert kept.split("\n")[:4] == [
        "> GET /bigpkg-1.0-py3-none-any.whl HTTP/1.1",
        "> Host: 127.0.0.1:8765",
        "< HTTP/1.0 200 OK",
        "< Content-type: application/octet-stream",
    ]


def test_curl_body_stays_whole() -> None:
    body = output("curl_head.txt").split("\r\n\r\n", 1)[1]
    kept = headers("curl_head.txt")
    assert kept.endswith("\n\n" + body)
    assert "Server:" not in kept


@pytest.mark.parametrize("name", ["curl_missing.txt", "wget_missing.txt"])
def test_a_failed_download_still_says_so(name: str) -> None:
    assert "404" in headers(name)
    assert "/nothing" in headers(name)


def test_wget_dots_go_and_the_file_stays() -> None:
    kept = headers("wget_pipe.txt")
    assert "...... " not in kept
    assert "saved [6000645/6000645]" in kept
    assert len(kept) < len(output("wget_pipe.txt")) / 40


@pytest.mark.parametrize("name", ["curl_progress.txt", "curl_progress_pipe.txt"])
def test_a_meter_alone_leaves_a_note(name: str) -> None:
    assert headers(name).startswith("[transfer meter, ")


def test_pip_bar_goes() -> None:
    kept = headers("pip_progress.txt")
    assert "━" not in kept
    assert "Downloading http://127.0.0.1:8765/bigpkg-1.0-py3-none-any.whl (6.0 MB)" in kept


def log_of(*items: tuple[str, str | None, tuple[str, ...]]) -> ObservationLog:
    return ObservationLog(
        Observation(10 + i, Action("", shows, changes), text, float(i))
        for i, (text, shows, changes) in enumerate(items)
    )


LONG = "On branch main\nnothing to commit, working tree clean, as it was before\n"


def test_repeat_names_the_first_with_count_and_time() -> None:
    log = log_of((LONG, None, ()), ("x", None, ()), (LONG, None, ()), (LONG, None, ()))
    assert RepeatFilter().apply(LONG, FilterContext(log, 0)).text == LONG
    assert RepeatFilter().apply(LONG, FilterContext(log, 2)).text == "[same output as #10: time 2, 2 s later]"
    assert RepeatFilter().apply(LONG, FilterContext(log, 3)).text == "[same output as #10: time 3, 3 s later]"


def test_repeat_after_a_revert_stays_in_full() -> None:
    """The first view was superseded, so a pointer to it would lead nowhere."""
    view = "line\n" * 30
    log = log_of((view, "/a", ()), ("", None, ("/a",)), ("", None, ("/a",)), (view, "/a", ()))
    pipeline = Pipeline(count_tokens=len)
    assert pipeline.run(view, FilterContext(log, 0)).text.startswith("[stale view of /a")
    assert pipeline.run(view, FilterContext(log, 3)).text == view


ITEM = st.tuples(
    st.sampled_from([LONG, LONG + "x", "short"]),
    st.sampled_from([None, "/a", "/b"]),
    st.sampled_from([(), ("/a",), ("/b",)]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ITEM, max_size=14), st.integers(1, 6))
def test_every_pointer_leads_to_a_full_text_or_to_a_change(
    items: list[tuple[str, str | None, tuple[str, ...]]], window: int
) -> None:
    log = log_of(*items)
    pipeline = Pipeline((SupersededReadFilter(), RepeatFilter(window=window)), count_tokens=len)
    texts = [pipeline.run(log[i].text, FilterContext(log, i)).text for i in range(len(log))]
    for i, text in enumerate(texts):
        if text.startswith("[same output as #"):
            first = int(text[17:].split(":")[0]) - 10
            assert i - window <= first < i
            assert texts[first] == log[i].text
        elif text.startswith("[stale view"):
            by = int(text.rsplit("#", 1)[1].rstrip("]")) - 10
            assert by > i
            assert log[i].action.shows in log[by].action.changes
        else:
            assert text == log[i].text


@settings(max_examples=100, deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=10))
def test_a_tombstone_does_not_change_when_the_log_grows(
    items: list[tuple[str, str | None, tuple[str, ...]]],
) -> None:
    """But for the one step from a view, or a repeat of it, to the pointer to its change."""
    before: list[str] = []
    for n in range(1, len(items) + 1):
        log = log_of(*items[:n])
        pipeline = Pipeline((SupersededReadFilter(), RepeatFilter()), count_tokens=len)
        now = [pipeline.run(log[i].text, FilterContext(log, i)).text for i in range(n)]
        for old, new in zip(before, now, strict=False):
            assert new == old or (new.startswith("[stale view") and not old.startswith("[stale view"))
        before = now


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


def pydicom() -> ObservationLog:
    run = json.loads((FIXTURES / "sweagent_pydicom_1458.traj.json").read_text())
    reader, log = ActionReader(), ObservationLog()
    for i, step in enumerate(run["trajectory"]):
        log.append(Observation(i, reader.command(step["action"], step["observation"]), step["observation"]))
    return log


def test_superseded_reads_of_the_pydicom_run() -> None:
    """Read off the run by hand: the new script is edited (1) and removed (10), the handler opened (4) and edited (8);
    the edits 5, 6 and 7 were rejected, so they changed nothing; 7 answers as 6 did."""
    log = pydicom()
    found = {i: by for i in range(len(log)) if (by := log.superseded_by(i)) is not None}
    assert found == {0: 1, 1: 10, 4: 8}
    pipeline = Pipeline(count_tokens=len)
    texts = [pipeline.run(log[i].text, FilterContext(log, i)).text for i in range(len(log))]
    handler = "/pydicom__pydicom/pydicom/pixel_data_handlers/numpy_handler.py"
    assert texts[4] == f"[stale view of {handler}, 103 lines: changed by #8]"
    assert texts[1] == "[stale view of /pydicom__pydicom/reproduce_bug.py, 21 lines: changed by #10]"
    assert texts[7] == "[same output as #6: time 2]"
    assert texts[0] == log[0].text  # the pointer would be longer than the view
    assert all(texts[i] == log[i].text for i in (2, 3, 5, 6, 8, 9, 10, 11))


def test_swe_agents_newer_commands_and_a_working_directory_learnt_from_a_view() -> None:
    reader = ActionReader()
    view = "[File: reproduce.py (1 lines total)]\r\n1:"
    assert reader.command("create reproduce.py", view).shows == "reproduce.py"  # nothing says where that is
    view = "[File: /testbed/reproduce.py (3 lines total)]\r\n1:import os"
    assert reader.command("insert 'import os' 0", view).changes == ("/testbed/reproduce.py",)
    view = "Text replaced.\n[File: src/a.py (9 lines total)]\n1:x"
    assert reader.command("edit 'a' 'b'", view).changes == ("/testbed/src/a.py",)
    assert (
        reader.command(
            "edit 'a' 'b'", "Your proposed edit has introduced new syntax error(s).\n" + view
        ).changes
        == ()
    )
    assert reader.command("rm reproduce.py").changes == ("/testbed/reproduce.py",)
    reader.enter("/elsewhere")
    assert reader.command("cat b").shows == "/elsewhere/b"


@pytest.mark.parametrize(
    ("command", "shows", "changes"),
    [
        ("cat src/a.py", "/w/src/a.py", ()),
        ("cd sub && cat a.py", "/w/sub/a.py", ()),
        ("sed -n '1,40p' a.py", "/w/a.py", ()),
        ("head -n 20 a.py", "/w/a.py", ()),
        ("cat a.py | grep x", None, ()),
        ("cat a.py b.py", None, ()),
        ("cat a.py && make", None, ()),
        ("sed -i 's/a/b/' a.py", None, ("/w/a.py",)),
        ("rm -rf a.py b", None, ("/w/a.py", "/w/b")),
        ("mv a.py b.py", None, ("/w/a.py", "/w/b.py")),
        ("cat > a.py <<'EOF'\nrm b.py\nEOF\n", None, ("/w/a.py",)),
        ("make 2>&1 | tee log.txt", None, ("/w/log.txt",)),
        ("make > log.txt 2>&1", None, ("/w/log.txt",)),
        ("git checkout -- a.py", None, ("/w/a.py",)),
        ("git checkout main", None, ()),
        ("ls > /dev/null", None, ()),
        ("echo 'a > b'", None, ("/w/b",)),  # a quoted redirect is taken for one: it only costs a read
        ("python x.py", None, ()),
        ("unbalanced 'quote", None, ()),
        ("", None, ()),
    ],
)
def test_shell_actions(command: str, shows: str | None, changes: tuple[str, ...]) -> None:
    action = ActionReader("/w").command(command)
    assert (action.shows, action.changes) == (shows, changes)


def test_failed_commands_changed_nothing() -> None:
    assert ActionReader("/w").command("rm a.py", exit_code=1).changes == ()


def test_editor_calls() -> None:
    reader = ActionReader("/w")
    assert reader.tool_call("str_replace_editor", {"command": "view", "path": "a.py"}).shows == "/w/a.py"
    assert reader.tool_call("str_replace_editor", {"command": "str_replace", "path": "/x"}).changes == ("/x",)
    assert reader.tool_call("read_file", {"path": "b"}).shows == "/w/b"
    assert reader.tool_call("write_file", {"file_path": "b", "content": ""}).changes == ("/w/b",)
    assert reader.tool_call("bash", {"command": "cat c"}).shows == "/w/c"
    assert reader.tool_call("weather", {"city": "x"}) == Action("weather")


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
    text = to_text(payload)
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
