"""File views that layouts fold to skeletons: what stays, where the rest is, and what happens without the grammars."""

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deeproot.runtime.context import record, staging
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.skeleton import languages
from deeproot.runtime.context.skeleton.fold import skeleton
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context, WorkingSet

METHOD = """
    def step_{n}(self, amount: int) -> int:
        first = amount + {n}
        for i in range(first):
            self.total += i * {n}
        if self.total > {n}00:
            raise ValueError("step {n} went too far")
        return self.total - {n}
"""
SOURCE = (
    '"""Counts."""\n\n\nclass Counter:\n    """Steps."""\n\n    total = 0\n'
    + "".join(METHOD.format(n=n) for n in range(40))
    + "\n\ndef preview(n: int) -> int:\n    value = 5\n    value *= n\n    return value\n"
)
URI = "file:///repo/counter.py"
Assemble = Callable[..., Context]


@pytest.fixture
def assemble(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> Assemble:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")
    return lambda log, policy=None, **options: WorkingSet(
        policy=policy or ThreeZones(24_000), tokenizer=segments, template=template, **options
    ).assemble(log)


def turn(log: EventLog, i: int, command: str, output: str) -> None:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    record.assistant(log, f"step {i}", tool_calls=[{"id": f"c{i}", "type": "function", "function": function}])
    record.tool_result(log, f"c{i}", output, name="bash", exit_code=0)


def with_file(log: EventLog, *, keep: tuple[str, ...] = ()) -> EventLog:
    """A file in work, settled by the turns after it."""
    record.policy(log, "You are careful.")
    record.user(log, "Fix the test.")
    turn(log, 0, "ls", "counter.py")
    record.file_version(log, URI, SOURCE, keep=keep)
    for i in range(1, 8):
        turn(log, i, "make", f"word{i} " * 400)
    return log


def body_of(context: Context, key: str) -> str:
    """The words in an item's envelope."""
    text = next(str(m["content"]) for m in context.messages if f'source="{key}"' in str(m.get("content")))
    found = re.search(rf'<(\w+) source="{re.escape(key)}"[^>]*>\n(.*?)\n</\1>', text, re.DOTALL)
    assert found is not None
    return found[2]


def test_a_file_is_whole_while_new_and_a_skeleton_in_the_trunk(assemble: Assemble, log: EventLog) -> None:
    record.user(log, "Fix the test.")
    turn(log, 0, "ls", "counter.py")
    record.file_version(log, URI, SOURCE)
    assert body_of(assemble(log), URI) == SOURCE
    context = assemble(with_file(EventLog.memory(clock=lambda: 1)))
    segment = next(s for s in context.report.segments if s.source == URI)
    assert segment.zone is Zone.TRUNK
    note, text = body_of(context, URI).split("\n", 1)
    assert text == skeleton(SOURCE, "python").text
    assert ast.parse(text).body
    hashed = segment.payload_hash[:16]
    folds = len(skeleton(SOURCE, "python").folds)
    assert note == f"[skeleton: {folds} bodies folded; the archive has all of it as {hashed}]"
    before, after = map(int, re.findall(r"skeleton: (\d+) -> (\d+) tokens", segment.notes[-1])[0])
    assert after < before / 2
    assert abs(segment.tokens - after) < 20
    assert f"{folds} bodies folded, all of it under {hashed}" in str(context.report)


def test_the_archive_has_the_source_and_replay_gives_the_same(assemble: Assemble, tmp_path: Path) -> None:
    ticks = iter(range(1, 10**6))
    with EventLog.open(tmp_path / "run.db", clock=lambda: next(ticks)) as log:
        first = assemble(with_file(log))
    with EventLog.open(tmp_path / "run.db") as log:
        again = assemble(log)
        segment = next(s for s in again.report.segments if s.source == URI)
        assert log.payload(segment.payload_hash).decode() == SOURCE
    assert again.token_ids.tobytes() == first.token_ids.tobytes()
    assert again.report.to_dict() == first.report.to_dict()


@pytest.mark.parametrize("way", ["event", "working set"])
def test_named_symbols_stay_whole(way: str, assemble: Assemble, log: EventLog) -> None:
    names = ("Counter.step_7", "preview")
    if way == "event":
        text = body_of(assemble(with_file(log, keep=names)), URI)
    else:
        text = body_of(assemble(with_file(log), keep_symbols=names), URI)
    assert "went too far" in text
    assert "value *= n" in text
    assert text.count("went too far") == 1
    assert text.count("# folded") == len(skeleton(SOURCE, "python", keep=names).folds)


def test_what_a_tool_showed_folds_when_a_batch_rewrites_the_trunk(assemble: Assemble, log: EventLog) -> None:
    record.user(log, "Fix the test.")
    shown = "".join(f"{n:6}\t{line}\n" for n, line in enumerate(SOURCE.splitlines(), 1))
    turn(log, 0, "cat -n /repo/counter.py", shown)
    turn(log, 1, "ls", "x\n")
    for i in range(2, 5):
        turn(log, i, "make", f"word{i} " * 150)
    options = {"result_tokens": None}
    roomy = assemble(log, ThreeZones(24_000), **options)
    assert body_of(roomy, "tool://bash/c0") == shown
    assert next(s.zone for s in roomy.segments if s.source.uri == "tool://bash/c0") is Zone.TRUNK
    tight = assemble(log, ThreeZones(int(roomy.report.tokens / 0.8) - 20), **options)
    assert "1 batch compaction" in str(tight.report)
    assert not tight.report.dropped
    text = body_of(tight, "tool://bash/c0").split("\n", 1)[1]
    lines = SOURCE.splitlines()
    for line in filter(None, text.splitlines()):
        number, words = line.split("\t", 1)
        if "# folded" not in words:
            assert lines[int(number) - 1] == words
    assert text.count("# folded") == len(skeleton(SOURCE, "python").folds)


@pytest.mark.parametrize("uri", ["file:///repo/notes.txt", "file:///repo/broken.py", "file:///repo/huge.py"])
def test_what_cannot_fold_stays_as_it_is(uri: str, assemble: Assemble, log: EventLog) -> None:
    source = {"broken": "def (:\n" + SOURCE, "huge": SOURCE * 100}.get(Path(uri).stem, SOURCE)
    record.user(log, "Fix the test.")
    turn(log, 0, "ls", "x")
    record.file_version(log, uri, source)
    for i in range(1, 5):
        turn(log, i, "make", f"word{i} " * 400)
    context = assemble(log, ThreeZones(8_000_000, keep_turns=1))
    huge = assemble(log, ThreeZones(8_000_000, keep_turns=1, fold_over=None))
    assert context.token_ids.tobytes() == huge.token_ids.tobytes()


def test_never_if_so_asked(assemble: Assemble, log: EventLog) -> None:
    with_file(log)
    whole = assemble(log, ThreeZones(24_000, fold_over=None))
    assert body_of(whole, URI) == SOURCE
    assert "skeleton" not in str(whole.report)


def test_without_the_grammars_it_is_off_and_the_report_says_so(
    assemble: Assemble, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    languages.parser_of.cache_clear()
    monkeypatch.setitem(sys.modules, "tree_sitter_python", None)
    context = assemble(with_file(log))
    assert body_of(context, URI) == SOURCE
    notes = [note for note in context.report.notes if "skeletons are off" in note]
    assert len(notes) == 1
    assert "pip install 'deeproot[context]'" in notes[0]
    # No source file that is long enough, no note.
    other = EventLog.memory()
    record.user(other, "Fix the test.")
    assert not any("skeletons" in note for note in assemble(other).report.notes)


def test_lines_of_a_skeleton_know_where_they_were() -> None:
    for path in sorted(Path(staging.__file__).parent.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        made = skeleton(source, "python")
        lines = source.split("\n")
        pairs = [(line, lines[made.source_line(n) - 1]) for n, line in enumerate(made.text.split("\n"), 1)]
        different = [line for line, was in pairs if line != was]
        assert len(different) == len(made.folds)
        assert all("...  # folded" in line for line in different)
