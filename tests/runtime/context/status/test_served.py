"""Against a running server: what it says it had cached is all that the assembler promises."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.skills.skill import Skill, catalogue
from deeproot.runtime.context.skills.use import SKILL_TOOL, answer
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.environment import Environment
from deeproot.runtime.context.status.mode import Mode
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.status.time_sense import TimeSense
from deeproot.runtime.context.working_set import Context

from ...server.harness import RunningServer
from ..agent_turns import TAIL, TOOLS, call, stable
from ..served import thinking_model, thinking_server, thinking_set

SKILL = Skill("slides", "slides are made", "Write html first.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with thinking_server(folder) as running:
        yield running


def ask(server: RunningServer, context: Context) -> tuple[int, int]:
    """Prompt and cached tokens, as the server counts them."""
    answered = httpx.post(
        f"{server.url}/v1/chat/completions",
        json=context.request(model="tiny", max_tokens=1, temperature=0),
        timeout=120,
    )
    assert answered.status_code == 200, answered.text
    usage = answered.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("mode", list(Mode))
def test_all_but_the_tail_is_cached(folder: Path, server: RunningServer, log: EventLog, mode: Mode) -> None:
    working_set = thinking_set(folder, techniques=Techniques.all())
    bar = StatusBar(log, techniques=Techniques.all(), time_sense=TimeSense(600), mode=mode)
    record.policy(log, f"You are careful ({mode}).")
    record.policy(log, catalogue([SKILL]))
    record.policy(log, bar.manual())
    record.constraint(log, "Never edit vendor/.")
    record.tools(log, [*TOOLS, SKILL_TOOL])
    record.user(log, "Make the tests pass.")
    before = 0
    for i in range(5):
        bar.update(now_ns=1_700_000_000 * 10**9 + i * 7 * 10**9, environment=Environment("/repo"))
        context = working_set.assemble(log)
        prompt, cached = ask(server, context)
        assert prompt == context.token_ids.size
        assert cached >= before
        before = stable(context, TAIL if mode is Mode.REPLACE else TAIL[1:])
        assert before > 0.8 * prompt
        if i == 2:
            function = {"name": "use_skill", "arguments": '{"name": "slides"}'}
            record.assistant(log, "", tool_calls=[{"id": "s", "type": "function", "function": function}])
            answer(log, "s", function, [SKILL])
        else:
            call(log, "bash", {"cmd": f"make {i}"}, f"built {i}", reasoning="I weigh it.")
    server.wait_idle()
