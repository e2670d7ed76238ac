"""A long text as its head, its failing lines and its tail, with a pointer to all of it."""

from collections.abc import Callable, Sequence

from deeproot.runtime.context.extract.extract import failing_lines

_FATAL = ("fatal", "panic", "traceback", "assert", "error:")


def preview(
    text: str, limit: int, count: Callable[[str], int], payload_hash: str
) -> tuple[str, tuple[str, ...]]:
    """A text of more than `limit` tokens in at most about that many, cut at line ends; and what the report says of it.

    Lines that tell of a failure stay, wherever they stand, as many as fit in half of `limit`: those that ended the run
    first, then the last ones. Head and tail share the rest. A text within the limit is given back as it is.
    """
    total = count(text)
    if total <= limit:
        return text, ()
    lines = text.split("\n")
    wanted = _most_telling(lines, limit, count)
    share = limit / total / 2
    while True:
        keep = int(len(text) * share)
        head, tail = _head(lines, keep), _tail(lines, keep)
        if head + tail == 0 and not wanted:
            short = _cut_line(text, keep, payload_hash)
        else:
            kept = set(range(head)) | set(range(len(lines) - tail, len(lines))) | wanted
            short = _joined(lines, sorted(kept), total, payload_hash)
        if count(short) <= limit or keep == 0:
            return short, (f"shortened from {total} tokens, all of it under {payload_hash[:16]}",)
        share *= 0.8


def _most_telling(lines: Sequence[str], limit: int, count: Callable[[str], int]) -> set[int]:
    """Numbers of failing lines that fit in half the limit together."""
    failing = [i for i in failing_lines(lines) if len(lines[i]) <= 2_000]
    ranked = sorted(failing, key=lambda i: (not any(word in lines[i].lower() for word in _FATAL), -i))
    chosen: set[int] = set()
    left = limit // 2
    for i in ranked:
        left -= count(lines[i]) + 1
        if left < 0:
            break
        chosen.add(i)
    return chosen


def _head(lines: Sequence[str], characters: int) -> int:
    """How many whole lines from the start fit in so many characters."""
    n = 0
    while n < len(lines) and characters >= len(lines[n]) + 1:
        characters -= len(lines[n]) + 1
        n += 1
    return n


def _tail(lines: Sequence[str], characters: int) -> int:
    return _head(lines[::-1], characters)


def _joined(lines: Sequence[str], kept: Sequence[int], total: int, payload_hash: str) -> str:
    out: list[str] = []
    after = 0
    pointed = False
    for i in [*kept, len(lines)]:
        if i > after:
            more = "" if pointed else f" here; the archive has all {total} tokens as {payload_hash[:16]}"
            out.append(f"[{i - after} line{'s' * (i - after > 1)} left out{more}]")
            pointed = True
        if i < len(lines):
            out.append(lines[i])
        after = i + 1
    return "\n".join(out)


def _cut_line(text: str, keep: int, payload_hash: str) -> str:
    """Of a text whose lines are too long to keep any."""
    note = (
        f"[{len(text) - 2 * keep} characters left out here; the archive has all of it as {payload_hash[:16]}]"
    )
    return f"{text[:keep]}\n{note}\n{text[len(text) - keep :]}"
