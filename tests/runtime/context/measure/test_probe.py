"""Which actions violate a constraint, and which constraints a machine can check at all."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.measure.actions import ToolCall, read_run
from deeproot.runtime.context.measure.checks import (
    AtMost,
    Check,
    CheckError,
    NeverCalls,
    NeverChanges,
    NeverRuns,
    RunsWith,
    check_of_text,
    read_checks,
)
from deeproot.runtime.context.measure.measures import Share
from deeproot.runtime.context.measure.probe import probe
from deeproot.runtime.context.measure.replay import Replayer, RoughTokenizer
from deeproot.runtime.context.policies import SlidingWindow
from deeproot.runtime.context.tokenise import SegmentTokenizer

from .test_measures import act, replayer


def call(name: str = "bash", command: str = "", changes: tuple[str, ...] = ()) -> ToolCall:
    return ToolCall(1, 1, name, command, changes)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("Never edit vendor/.", NeverChanges("vendor/")),
        ("Do not modify files in src/core/alloc.c", NeverChanges("src/core/alloc.c")),
        ("You must not change any files under `tests/`.", NeverChanges("tests/")),
        ("don't touch *.lock files", None),
        ("Never touch *.lock.", NeverChanges("*.lock")),
        ("Never run `git push`.", NeverRuns(re.compile(r"(?<![\w-])git\ push(?![\w-])"))),
        ("Do not call cancel_reservation.", NeverCalls(frozenset(["cancel_reservation"]))),
        ("Do not call tool send_mail", None),  # no such tool was called
        ("Run pytest with --db-port=5433.", RunsWith("pytest", "--db-port=5433")),
        ("Never edit vendor/ unless a test demands it.", None),
        ("Be polite.", None),
        ("Ask before you book.", None),
        ("", None),
    ],
)
def test_a_sentence_is_a_check_only_if_all_of_it_is_understood(text: str, check: Check | None) -> None:
    assert check_of_text(text, {"cancel_reservation"}) == check


@settings(max_examples=100, deadline=None)
@given(st.text() | st.from_regex(r"Never (edit|run|call) [`/\w. ]*", fullmatch=True))
def test_any_sentence_is_read_without_error(text: str) -> None:
    check_of_text(text, {"a"})


@pytest.mark.parametrize(
    ("check", "made", "why"),
    [
        (NeverChanges("vendor/"), call(changes=("vendor/a/b.c",)), "changes vendor/a/b.c"),
        (NeverChanges("vendor/"), call(changes=("/repo/vendor/b.c",)), "changes /repo/vendor/b.c"),
        (NeverChanges("vendor/"), call(changes=("src/vendored.c", "vendors/x")), None),
        (NeverChanges("/etc"), call(changes=("/etc/hosts",)), "changes /etc/hosts"),
        (NeverChanges("/etc"), call(changes=("/repo/etc/hosts", "etc/x")), None),
        (NeverChanges("*.lock"), call(changes=("a/uv.lock",)), "changes a/uv.lock"),
        (NeverRuns(re.compile("git push")), call(command="cd x && git push -f"), "runs 'git push'"),
        (NeverCalls(frozenset(["rm"])), call("rm"), "calls rm"),
        (NeverCalls(frozenset(["rm"])), call("bash", "rm"), None),
        (
            RunsWith("pytest", "--db-port=5433"),
            call(command="pytest -q"),
            "runs pytest without --db-port=5433",
        ),
        (RunsWith("pytest", "--db-port=5433"), call(command="pytest -q --db-port=5433 | tail"), None),
        (RunsWith("pytest", "-x"), call(command="python -m pytest; echo -x"), "runs pytest without -x"),
        (RunsWith("pytest", "-x"), call(command="grep pytest 'unbalanced"), "runs pytest without -x"),
        (RunsWith("pytest", "-x"), call(command="ls"), None),
    ],
)
def test_checks_on_single_calls(check: Check, made: ToolCall, why: str | None) -> None:
    assert check.violated(made, ()) == why


def test_a_number_of_calls_is_counted_over_the_run() -> None:
    check = AtMost("book", 1)
    first = call("book")
    assert check.violated(first, []) is None
    assert check.violated(call("bash"), [first, first]) is None
    assert check.violated(call("book"), [first, call("bash")]) == "call 2 of book"


def test_violations_are_counted_by_horizon_and_by_compactions(log: EventLog) -> None:
    act(log, 0, "rm vendor/early.c", "")  # before the constraint was said
    record.constraint(log, "Never edit vendor/.")
    record.constraint(log, "Be careful.")
    for number in range(1, 31):
        command = "sed -i s/a/b/ vendor/x.c" if number in (3, 20, 25) else f"echo {number}"
        act(log, number, command, f"output {number} " * 60, exit_code=1 if number == 25 else 0)
    run = read_run(log)
    window = Replayer(SlidingWindow(1_500), SegmentTokenizer(RoughTokenizer())).calls(log)
    found = probe(run, window, {})
    checked, unchecked = found.constraints
    assert (unchecked.constraint, unchecked.checked, unchecked.violations) == ("Be careful.", None, ())
    assert checked.actions == 30
    assert [v.turn for v in checked.violations] == [4, 21, 26]  # the attempt that failed is one too
    assert all(v.staged for v in checked.violations)  # the root had it
    assert found.by_horizon == {"<= 10": Share(1, 9), "<= 25": Share(1, 15), "<= 50": Share(1, 6)}
    assert sum(share.whole for share in found.by_compactions.values()) == 30
    assert found.by_compactions[0].part == 1
    assert found.difference is not None
    before, after = found.by_compactions[0], Share(2, 30 - found.by_compactions[0].whole)
    assert found.difference == pytest.approx(2 / after.whole - 1 / before.whole)


def test_a_constraint_that_fell_out_of_the_prompt_is_named_as_such(log: EventLog) -> None:
    """A host that has its rules only in an early message: in the window's prompt they are gone."""
    record.user(log, "Fix it.")
    act(log, 0, "cat RULES.md", "Never run git push.")
    for number in range(1, 20):
        act(log, number, f"echo {number}", f"output {number} " * 60)
    act(log, 20, "git push", "ok")
    checks = read_checks({"Never run git push.": {"never_runs": "git push"}})
    calls = Replayer(SlidingWindow(1_500), SegmentTokenizer(RoughTokenizer())).calls(log)
    (violation,) = probe(read_run(log), calls, checks).constraints[0].violations
    assert (violation.turn, violation.staged) == (21, False)
    assert violation.compactions > 0
    (whole,) = probe(read_run(log), replayer().calls(log), checks).constraints[0].violations
    assert (whole.staged, whole.compactions) == (True, 0)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "no object"),
        ({"x": 3}, "check of 'x': give one of never_changes"),
        ({"x": {"never_changes": ""}}, "never_changes is not of a known form"),
        ({"x": {"never_runs": "("}}, "never_runs is no regular expression"),
        ({"x": {"at_most": ["book", -1]}}, "at_most is not of a known form"),
        ({"x": {"never_calls": [1]}}, "never_calls is not of a known form"),
        ({"x": {"shouts": True}}, "shouts is not of a known form"),
    ],
)
def test_checks_that_are_written_wrongly_are_refused(document: object, says: str) -> None:
    with pytest.raises(CheckError, match=says):
        read_checks(document)


def test_every_form_of_a_check_can_be_written(tmp_path: object) -> None:
    document = {
        "a": {"never_changes": "x/"},
        "b": {"never_calls": ["t"]},
        "c": {"never_runs": "x+"},
        "d": {"runs_with": ["pytest", "-x"]},
        "e": {"at_most": ["t", 2]},
    }
    assert list(read_checks(json.loads(json.dumps(document))).values()) == [
        NeverChanges("x/"),
        NeverCalls(frozenset(["t"])),
        NeverRuns(re.compile("x+")),
        RunsWith("pytest", "-x"),
        AtMost("t", 2),
    ]
