"""A working set on a byte-level vocabulary, and an agent's host in miniature on a real folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import file_entity
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

MakeSet = Callable[..., WorkingSet]


@pytest.fixture
def make_set(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> MakeSet:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")

    def make(policy: LayoutPolicy | None = None, other: ChatTemplate | None = None) -> WorkingSet:
        return WorkingSet(policy=policy or AppendOnly(), tokenizer=segments, template=other or template)

    return make


class Host:
    """Runs an agent's calls on real files and logs them as a host would, bindings and own writes included."""

    def __init__(self, root: Path, log: EventLog, invalidator: Invalidator) -> None:
        self.root = root
        self.log = log
        self.invalidator = invalidator

    def say(self, name: str, **arguments: Any) -> tuple[int, str]:
        """The model's message with one call; its event and the call's id."""
        call_id = f"c{len(self.log)}"
        spelled = ", ".join(f'"{key}": "{value}"' for key, value in arguments.items())
        function = {"name": name, "arguments": "{" + spelled + "}"}
        call = {"id": call_id, "type": "function", "function": function}
        return record.assistant(self.log, "", tool_calls=[call]), call_id

    def read(self, name: str) -> int:
        """Read a file with line numbers; the result's event."""
        _, call_id = self.say("show", file=name)
        reading = self.invalidator.reading([file_entity(self.root / name)])
        lines = (self.root / name).read_text().splitlines()
        text = "\n".join(f"{i}: {line}" for i, line in enumerate(lines, 1))
        seq = record.tool_result(self.log, call_id, text, name="show", exit_code=0)
        self.invalidator.bind(seq, reading)
        return seq

    def read_it(self, name: str, text: str) -> int:
        """Make a file and read it."""
        (self.root / name).write_text(text)
        return self.read(name)

    def write(self, name: str, text: str) -> int:
        """Write a file; the event of the call."""
        by, call_id = self.say("put", file=name)
        (self.root / name).write_text(text)
        self.invalidator.wrote([self.root / name], by)
        record.tool_result(self.log, call_id, "written", name="put", exit_code=0)
        return by

    def run(self, command: str, output: str, exit_code: int = 0) -> int:
        """A command that touches nothing; the result's event."""
        _, call_id = self.say("bash", cmd=command)
        return record.tool_result(self.log, call_id, output, name="bash", exit_code=exit_code)


@pytest.fixture
def host(tmp_path: Path, log: EventLog) -> Host:
    record.policy(log, "You fix C.")
    record.user(log, "Guard dispatch_packet.")
    return Host(tmp_path, log, Invalidator(log))


@pytest.fixture
def invalidator(log: EventLog) -> Invalidator:
    return Invalidator(log)
