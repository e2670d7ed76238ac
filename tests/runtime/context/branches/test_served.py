"""Against a running server: thoughts and branches that nobody goes on with are the first that its cache gives up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.branches.child import fork
from deeproot.runtime.context.branches.report import join
from deeproot.runtime.context.branches.scratch import scratch
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.thinking import Thinking
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.context.working_set import Context, WorkingSet
from deeproot.scheduler.loop import take_stats

from ...server.harness import RunningServer, ScriptedForward
from ..agent_turns import TOOLS, call
from ..served import PAGE, thinking_model, thinking_server, thinking_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with thinking_server(folder) as running:
        yield running


@pytest.fixture
def working_set(folder: Path) -> WorkingSet:
    return thinking_set(folder, thinking=Thinking.SCRATCH)


class Asked:
    """One call: what the model was made to say, and the sequence that the server then had computed."""

    def __init__(self, server: RunningServer, context: Context, says: str, session: str) -> None:
        script = server.engine.scheduler.runner
        assert isinstance(script, ScriptedForward)
        answered = httpx.post(
            f"{server.url}/v1/chat/completions",
            json=context.request(
                model="tiny", seed=script.will_say(says), max_tokens=400, deeproot={"session_id": session}
            ),
            timeout=120,
        )
        assert answered.status_code == 200, answered.text
        self.message: dict[str, Any] = answered.json()["choices"][0]["message"]
        server.wait_idle()
        said = server.engine.speech.assets.tokenizer.encode(says, parse_special=False)
        self.sequence: TokenIds = np.concatenate([context.token_ids, said])


def scratch_pages(server: RunningServer) -> int:
    return take_stats(server.engine.scheduler).num_scratch_pages


def begin(log: EventLog, task: str) -> None:
    record.policy(log, "You are careful.")
    record.tools(log, TOOLS)
    record.user(log, task)


def test_a_thought_is_scratch_as_soon_as_the_action_is_committed(
    server: RunningServer, working_set: WorkingSet, log: EventLog
) -> None:
    begin(log, "Think of a number.")
    before = scratch_pages(server)
    thought = "I weigh one against the other. " * 8
    asked = Asked(server, working_set.assemble(log), f"<think>\n{thought}\n</think>\n\nSeven.", "thinker")
    assert asked.message["content"] == "Seven."
    assert thought.strip() in asked.message["reasoning_content"]
    assert scratch_pages(server) == before
    record.assistant(log, asked.message["content"], reasoning=asked.message["reasoning_content"])
    record.user(log, "And another.")
    following = working_set.assemble(log)
    made = scratch(asked.sequence, following.token_ids)
    assert made.tokens > len(thought)
    Asked(server, following, "Nine.", "thinker")
    # All whole pages behind the place where the two part, the prompt's own end included.
    assert abs(scratch_pages(server) - before - made.tokens // PAGE) <= 2


def test_a_branch_is_scratch_as_soon_as_its_parent_goes_on(
    server: RunningServer, working_set: WorkingSet, log: EventLog
) -> None:
    begin(log, "Find what handles refunds.")
    before = scratch_pages(server)
    Asked(server, working_set.assemble(log), "I send somebody.", "family")
    function = {"name": "delegate", "arguments": "{}"}
    record.assistant(log, "", tool_calls=[{"id": "d1", "type": "function", "function": function}])
    child = fork(log, "Find what handles payments.")
    for i in range(3):
        call(child, "read_file", {"path": f"{i}.py"}, f"x = {i}\n" * 30)
    asked = Asked(server, working_set.assemble(child), "It is callbacks.py.", "family")
    record.assistant(child, asked.message["content"])
    join(log, "d1", child, len)
    following = working_set.assemble(log)
    made = scratch(asked.sequence, following.token_ids)
    assert made.kept > 100
    at_branch = scratch_pages(server)
    Asked(server, following, "Then I look there.", "family")
    freed = scratch_pages(server) - at_branch
    assert freed > 30
    assert abs(freed - made.tokens // PAGE) <= 2
    assert at_branch - before < freed
