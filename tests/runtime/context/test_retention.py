"""The retention check: what counts as a fact, and that losing any one of them is noticed."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.events import payload_text
from deeproot.runtime.context.extract.base import Diagnostic, Parsed
from deeproot.runtime.context.extract.extract import extract
from deeproot.runtime.context.filters.base import FilterContext
from deeproot.runtime.context.filters.terminal import TerminalFilter
from deeproot.runtime.context.retention import Fact, RetentionError, check, facts, lost

OUTPUTS = Path(__file__).parent / "fixtures" / "tool_outputs"
TEXTS = {p.name: payload_text(p.read_bytes()) for p in sorted(OUTPUTS.glob("*.txt"))}


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("a.c:3:7: error: unknown type ‘foo_t’ [-Wfoo]", {("place", ("a.c", "3", "7")), ("code", ("-Wfoo",)), ("name", ("foo_t",))}),
        ("  --> src/x.rs:4:5", {("frame", ("src/x.rs", "4", "5"))}),
        ("error[E0308]: mismatched types", {("code", ("E0308",))}),
        ("src/a.ts(4,3): error TS2322: Type 'X' is bad.", {("place", ("src/a.ts", "4", "3")), ("code", ("TS2322",)), ("name", ("X",))}),
        ('  File "a/b.py", line 9, in run', {("frame", ("a/b.py", "9", "run"))}),
        ('  File "/usr/lib/python3.11/json/decoder.py", line 9, in run', set()),
        ("FAILED tests/t.py::test_a[x y] - boom", {("test", ("tests/t.py::test_a[x y]",))}),
        ("E   ValueError: no 7", {("assertion", ("ValueError: no 7",))}),
        ("--- FAIL: TestA/b (0.00s)", {("test", ("TestA/b",))}),
        ("    at f (/w/a.js:2:3)", {("frame", ("/w/a.js", "2", "3", "f"))}),
        ("    at f (node:internal/x:2:3)", set()),
        ("a.c:1:2: error: object 9fceb02d0ae5 is corrupt", {("place", ("a.c", "1", "2")), ("hash", ("9fceb02d0ae5",))}),
        ("tests/t.py::test_error PASSED", set()),
        ("E   AssertionError: the answer was ok", {("assertion", ("AssertionError: the answer was ok",))}),
        ("test tests::error ... ok", set()),
        ("0 errors, 0 warnings", set()),
        ("gcc -Werror -c a.c", set()),
    ],
)  # fmt: skip
def test_facts_of_a_line(line: str, want: set[tuple[str, tuple[str, ...]]]) -> None:
    assert {(f.kind, f.parts) for f in facts(f"before\n{line}\nafter\n")} == want


def test_redrawn_forms_count_as_lines() -> None:
    assert facts("a.c:1:2: error: x\rdone\n") == {Fact("place", ("a.c", "1", "2"))}


def test_numbers_must_stand_as_numbers_and_together_with_their_file() -> None:
    text = "a.c:12:7: error: x"
    assert lost(text, "a.c line 12 column 7") == []
    assert lost(text, "a.c:120:7") != []
    assert lost(text, "a.c\n12:7") != []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_dropping_any_facts_line_everywhere_is_noticed(name: str) -> None:
    text = TerminalFilter().apply(TEXTS[name], FilterContext()).text
    lines = text.split("\n")
    found = facts(text)
    assert lost(text, text) == []
    for fact in found:
        kept = "\n".join(line for line in lines if not all(part in line for part in fact.parts))
        assert fact in lost(text, kept)


def test_check_raises_with_the_stage_and_the_facts() -> None:
    with pytest.raises(
        RetentionError, match=r"mine would lose 1 fact: place a\.c 1 2; its result is refused"
    ) as caught:
        check("a.c:1:2: error: x", "gone", "mine")
    assert [f.parts for f in caught.value.facts] == [("a.c", "1", "2")]
    check("fine", "", "mine")


class Forgetful:
    """An extractor that gives one record, whatever stands in the output."""

    name = "forgetful"

    def suits(self, text: str) -> bool:
        return True

    def parse(self, lines: list[str]) -> Parsed:
        return Parsed((Diagnostic("forgetful", "something failed", at=1),))


@pytest.mark.parametrize("name", ["gcc_errors.txt", "pytest_long.txt", "cargo_test.txt", "tsc_plain.txt"])
def test_what_an_extractor_forgets_is_put_back(name: str) -> None:
    text = TEXTS[name] + "nothing of note here\n" * 200
    result = extract(text, [Forgetful()])
    assert lost(text, result.text) == []
    assert result.repaired > 0
    assert "nothing of note" not in result.text


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text())
def test_any_text_is_taken(original: str, kept: str) -> None:
    lost(original, kept)
    assert lost(original, original) == []
