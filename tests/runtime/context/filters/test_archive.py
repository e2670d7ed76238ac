"""What filters took away is in the archive, and their account says on which lines."""

import gzip
import json
import re
from pathlib import Path

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind, payload_text
from deeproot.runtime.context.filters.actions import ActionReader
from deeproot.runtime.context.filters.base import FilterContext
from deeproot.runtime.context.filters.observation import Observation, ObservationLog
from deeproot.runtime.context.filters.pipeline import Pipeline

SESSION = Path(__file__).parents[1] / "fixtures" / "session.jsonl.gz"
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\(B|\r+$")


def test_the_whole_session_can_be_read_back_from_the_archive(tmp_path: Path) -> None:
    with gzip.open(SESSION, "rt") as lines:
        recorded = [json.loads(line) for line in lines]
    log, reader, seen = EventLog.open(tmp_path / "run.db"), ActionReader("/repo"), ObservationLog()
    for step in recorded:
        event = log.append(EventKind.TOOL_RESULT, step["output"], data={"action": step["command"]})
        text = payload_text(log.payload(event))
        seen.append(Observation(event.seq, reader.command(step["command"], text), text, step["time"]))
    pipeline = Pipeline(count_tokens=len)
    shortened = 0
    for index, (event, step) in enumerate(zip(log.read(), recorded, strict=True)):
        original = log.payload(event).decode()
        assert original == step["output"]
        result = pipeline.run(seen[index].text, FilterContext(seen, index))
        shortened += len(result.text) < len(original)
        assert [s.refused for s in result.stages if s.refused] == []
        lines = original.split("\n")
        touched = any(s.drops for s in result.stages)
        for number, line in enumerate(result.text.split("\n"), 1):
            first, last = result.original_lines(number)
            assert 1 <= first <= last <= len(lines)
            if not touched:
                assert first == last == number
                assert COLOURS.sub("", lines[first - 1]).rstrip() == line.rstrip()
    assert shortened > len(recorded) / 2
