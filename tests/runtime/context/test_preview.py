"""Long texts cut short: what told of a failure stays, wherever it stood."""

from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.context.preview import preview

DIGEST = "0123456789abcdef" * 4


def count(text: str) -> int:
    return -(-len(text) // 4)


def test_a_text_within_the_limit_is_left_alone() -> None:
    assert preview("short", 10, count, DIGEST) == ("short", ())


def test_head_tail_and_the_failing_line_between() -> None:
    lines = [f"line {i}" for i in range(2_000)]
    lines[977] = "fatal: index.lock exists"
    short, notes = preview("\n".join(lines), 300, count, DIGEST)
    assert short.startswith("line 0\nline 1\n")
    assert short.endswith("line 1998\nline 1999")
    assert "fatal: index.lock exists\n" in short
    assert "left out here; the archive has all" in short
    assert DIGEST[:16] in short
    assert count(short) <= 300
    assert len(notes) == 1
    kept = [line for line in short.split("\n") if not line.startswith("[")]
    gone = [int(line.split()[0][1:]) for line in short.split("\n") if line.startswith("[")]
    assert len(kept) + sum(gone) == len(lines)  # the counts of what is left out are right


def test_the_line_that_ended_the_run_comes_before_the_many_that_did_not() -> None:
    lines = [f"ERROR attempt {i} failed" for i in range(3_000)]
    lines[1_500] = "panic: runtime error: index out of range [5]"
    short, _ = preview("\n".join(lines), 200, count, DIGEST)
    assert lines[1_500] in short


def test_one_endless_line_is_cut() -> None:
    short, _ = preview("x" * 50_000, 100, count, DIGEST)
    assert count(short) <= 100
    assert "characters left out here" in short


@given(
    st.lists(
        st.sampled_from(
            ["a", "ERROR b", "", "x" * 300, "Traceback (most recent call last):", "  at c", "é\r"]
        ),
        max_size=120,
    ),
    st.integers(40, 200),
)
def test_any_text_fits_and_is_made_of_its_own_lines(lines: list[str], limit: int) -> None:
    text = "\n".join(lines)
    short, notes = preview(text, limit, count, DIGEST)
    if not notes:
        assert short == text
        return
    assert count(short) <= limit * 1.5
    assert all(line in lines or line.startswith("[") for line in short.split("\n") if "x" not in line)
