"""What the tests on real files share."""

import time
from pathlib import Path

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import file_entity
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.invalidation.look import RACY_NS


def show(invalidator: Invalidator, log: EventLog, *paths: Path) -> int:
    """A tool shows the files; the event of its result."""
    reading = invalidator.reading(file_entity(path) for path in paths)
    seq = record.tool_result(log, "c", "".join(p.read_text(errors="replace")[:100] for p in paths))
    assert invalidator.bind(seq, reading) is None
    return seq


def settle(invalidator: Invalidator) -> None:
    """Let the 20 ms pass in which stat is not trusted, so that stat alone decides from here on."""
    time.sleep(2 * RACY_NS / 1e9)
    assert invalidator.check() == []


def states(invalidator: Invalidator) -> dict[int, State]:
    return {finding.seq: finding.state for finding in invalidator.check()}
