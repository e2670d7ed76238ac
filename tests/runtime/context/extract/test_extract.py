"""Each extractor on the raw output of its real tool, against what the tool named (read off by hand)."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.events import payload_text
from deeproot.runtime.context.extract.base import Diagnostic
from deeproot.runtime.context.extract.extract import Extraction, default_extractors, extract, worth_extracting
from deeproot.runtime.context.extract.native import load, strings
from deeproot.runtime.context.filters.base import FilterContext
from deeproot.runtime.context.filters.pipeline import Pipeline
from deeproot.runtime.context.filters.terminal import TerminalFilter
from deeproot.runtime.context.retention import facts, lost

OUTPUTS = Path(__file__).parents[1] / "fixtures" / "tool_outputs"
EXPECTED = json.loads((OUTPUTS / "expected.json").read_text())


def shown(name: str) -> str:
    return TerminalFilter().apply(payload_text((OUTPUTS / name).read_bytes()), FilterContext()).text


def reading(name: str) -> Extraction:
    return extract(shown(name))


def matches(d: Diagnostic, want: list) -> bool:
    file, line, column, code = want
    return (
        d.file == file
        and d.line == line
        and (column is None or d.column == column)
        and (code is None or d.code == code)
    )


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_place_line_and_code_has_its_record(name: str) -> None:
    records = reading(name).diagnostics
    missing = [w for w in EXPECTED[name]["at"] if not any(matches(d, w) for d in records)]
    assert missing == [], [(d.file, d.line, d.column, d.code) for d in records]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_failing_test_is_the_target_of_a_record(name: str) -> None:
    targets = {d.target for d in reading(name).diagnostics if d.severity == "failed"}
    missing = [t for t in EXPECTED[name]["tests"] if t not in targets]
    assert missing == [], targets


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_no_record_for_what_the_tool_did_not_name(name: str) -> None:
    """Places of errors and failing tests are those of the list; warnings and frames of the same run may be more."""
    known = {(w[0], w[1]) for w in EXPECTED[name]["at"]}
    strange = [
        (d.tool, d.file, d.line, d.severity, d.message)
        for d in reading(name).diagnostics
        if d.line is not None and d.severity != "warning" and (d.file, d.line) not in known
    ]
    assert strange == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_text_names_all_of_it(name: str) -> None:
    text = reading(name).text
    if text == shown(name):
        return  # shorter than its records would be, so left as it is
    for file, line, _, code in EXPECTED[name]["at"]:
        assert any(file in row and (line is None or str(line) in row) for row in text.split("\n")), (
            file,
            line,
        )
        assert code is None or code in text
    for item in EXPECTED[name]["tests"] + EXPECTED[name]["targets"]:
        assert item in text


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_retention_holds_without_repairs(name: str) -> None:
    """The records alone hold V(O), so the repair stays what it is: a net under formats that nobody has seen."""
    text = shown(name)
    result = reading(name)
    document = load(text)
    assert lost("\n".join(strings(document)) if document is not None else text, result.text) == []
    assert result.repaired == 0, result.text.split("also:")[-1]


NAMES = sorted(n for n in EXPECTED if n.endswith(".txt"))
LINES = [line for name in NAMES for line in shown(name).split("\n")]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), st.data())
def test_retention_holds_on_cut_and_mixed_outputs(names: list[str], data: st.DataObject) -> None:
    """Outputs are cut at any line by time limits and pagers, and one command runs several tools."""
    parts = []
    for name in names:
        lines = shown(name).split("\n")
        start = data.draw(st.integers(0, len(lines) - 1))
        parts += lines[start : data.draw(st.integers(start, len(lines)))]
    text = "\n".join(parts)
    assert lost(text, extract(text).text) == []


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(LINES), max_size=80).map("\n".join),
    )
)
def test_any_text_is_taken_and_keeps_its_facts(text: str) -> None:
    result = extract(text)
    assert len(result.text) <= max(len(text), 1) or result.tools[-1:] == ("fallback",)
    if load(text) is None:
        assert lost(text, result.text) == []


def test_a_version_of_node_without_an_error_above_it_is_text() -> None:
    text = "Node.js v22.1.0\nNode.js v22.1.0\nfine"
    assert lost(text, extract(text).text) == []


def test_general_fallback_keeps_head_failures_with_frames_and_tail() -> None:
    lines = [f"step {i} fine" for i in range(200)]
    lines[100:100] = ["FAIL: widget 7 is upside down", "    in assemble()", "    in main()"]
    result = extract("\n".join(lines))
    kept = result.text.split("\n")
    assert kept[:25] == lines[:25]
    assert kept[-25:] == lines[-25:]
    assert kept[25:31] == ["[74 lines omitted]", *lines[99:103], "[75 lines omitted]"]
    assert (result.tools, result.omitted) == (("fallback",), 149)


def test_short_output_without_a_record_is_left_alone() -> None:
    text = "\n".join(f"row {i}" for i in range(50))
    assert extract(text).text == text


def test_what_a_program_printed_before_its_traceback_stays() -> None:
    text = "result 17\n" + shown("python_traceback.txt")
    result = extract(text)
    assert result.text == text
    assert [(d.file, d.line, d.code) for d in result.diagnostics] == [
        ("/tmp/demo/python/services/auth_token.py", 11, "TypeError")
    ]


def test_locals_callers_and_expression_of_the_sources_example() -> None:
    [d] = [
        d
        for d in reading("pytest_verbose_locals.txt").diagnostics
        if d.target == "tests/test_auth.py::test_jwt_expiration"
    ]
    assert (d.file, d.line, d.code) == ("services/auth_token.py", 11, "TypeError")
    assert d.expression == 'expires_at = claims["exp"] + clock_skew_seconds'
    assert d.locals == (("claims", "{'sub': 'usr_99x', 'exp': None}"), ("clock_skew_seconds", "30"))
    assert [(f.file, f.line, f.function) for f in d.frames] == [
        ("services/auth_token.py", 17, "process_request"),
        ("tests/test_auth.py", 12, None),
    ]


def test_unittest_locals() -> None:
    [d] = [
        d for d in reading("unittest_locals.txt").diagnostics if d.target == "unit_cases.AuthCase.test_none"
    ]
    assert dict(d.locals) == {"claims": "{'sub': 'a', 'exp': None}", "clock_skew_seconds": "30"}
    assert d.expression == 'expires_at = claims["exp"] + clock_skew_seconds'


def test_records_know_their_line_in_the_output() -> None:
    for name in (
        "gcc_errors.txt",
        "cargo_build.txt",
        "tsc_plain.txt",
        "javac_errors.txt",
        "ruff_concise.txt",
    ):
        lines = shown(name).split("\n")
        for d in reading(name).diagnostics:
            assert d.message.split("\n")[0] in lines[d.at - 1]


def test_both_readings_of_one_tool_agree() -> None:
    """What the text form and the tool's own JSON say about the same run."""
    for text, native in (
        ("cargo_build.txt", "cargo_build_json.jsonl"),
        ("eslint_stylish.txt", "eslint_json.json"),
    ):
        a = {(d.file, d.line, d.column, d.code) for d in reading(text).diagnostics}
        b = {(d.file, d.line, d.column, d.code) for d in reading(native).diagnostics}
        assert a == b
    ruff = {(d.file.split("/")[-1], d.line, d.column, d.code) for d in reading("ruff_json.json").diagnostics}
    assert {(d.file, d.line, d.column, d.code) for d in reading("ruff_full.txt").diagnostics} == ruff


@pytest.mark.parametrize(
    "document",
    ["[]", "{}", "[1, 2]", '{"testResults": 3, "numFailedTests": 1}', "<a/>", "<testsuite", "[[[["],
)
def test_other_documents_are_no_tools_output(document: str) -> None:
    assert extract(document).text == document
    assert extract(document).diagnostics == ()


def test_each_format_is_found_by_its_own_extractor() -> None:
    tools = {name: reading(name).tools for name in EXPECTED}
    used = {t for found in tools.values() for t in found}
    assert {e.name for e in default_extractors()} - used == set()


def test_facts_are_none_for_a_clean_log() -> None:
    assert facts("[1/2] Building C object a.o\ntests/test_a.py::test_error PASSED\nall fine\n" * 50) == set()


@pytest.mark.parametrize(
    "unit",
    ["a.py::", "a.py:1: ", "\r", "\x1b[", "a:1:2: error: ", "'", "[", "E   ", "a.b.", '{"a":', "FAIL "],
)
def test_long_lines_of_near_misses_end(unit: str) -> None:
    """Patterns that try such a line from each of its characters would run into the suite's time limit here."""
    text = "= FAILURES =\n.go:\nerror: x\n" + unit * 40_000 + ":1:2: error: x\n"
    filtered = Pipeline(count_tokens=len).run(text).text
    assert extract(filtered).text
    facts(text)


def test_thousands_of_failures_are_read_and_kept() -> None:
    base = shown("pytest_short_tb.txt")
    text = "".join(
        base.replace("test_", f"test{i}_").replace("services/", f"services{i}/") for i in range(60)
    )
    result = extract(text)
    assert len({d.target for d in result.diagnostics}) >= 60 * 11
    assert lost(text, result.text) == []


@pytest.mark.parametrize(
    ("command", "worth"),
    [
        ("make -j4", True),
        ("cd build && ninja", True),
        ("LANG=C pytest -q 2>&1", True),
        ("cargo build", True),
        ("grep -rn error: src", False),
        ("make 2>&1 | tail -50", False),
        ("git diff HEAD", False),
        ("git bisect run make", True),
        ("cat a.log", False),
        ("cd x; ls", False),
        ("", True),
    ],
)
def test_what_shows_text_is_not_extracted_from(command: str, worth: bool) -> None:
    assert worth_extracting(command) is worth


def test_words_that_other_programs_share_are_no_records() -> None:
    grep = "".join(f"store/a.go:{n}: func Name{n}() error {{\n" for n in range(80))
    systemd = "● nginx.service - A high performance web server\n     Active: active (running)\n" * 30
    for text in (grep, systemd):
        assert extract(text).diagnostics == ()


def test_a_rust_test_without_its_section_is_named_all_the_same() -> None:
    """The time limit came between the list of tests and what they printed."""
    text = "running 2 tests\ntest a::slow ... FAILED\ntest a::fast ... ok\n" + "waiting for the lock\n" * 60
    assert [d.target for d in extract(text).diagnostics] == ["a::slow"]
