"""The agent against this project's own server: engine, cache, templates, tool-call parser, all real but the words."""

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from deeproot.runtime.agent.session import ANSWERED
from deeproot.runtime.agent.setup import begin
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.engine_setup import LoadedEngine
from deeproot.runtime.options import EngineOptions
from deeproot.scheduler.flight import Forward

from ..server.harness import RunningServer, ScriptedForward, running_server
from ..tiny_model import write_tiny_model
from .runs import Seen, run_session, settings_for


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, ScriptedForward]]:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=16_384)
    made: list[ScriptedForward] = []

    def script(engine: LoadedEngine) -> Forward:
        made.append(ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer))
        return made[0]

    options = EngineOptions(
        model=str(folder),
        load_format="dummy",
        kv_cache_memory_bytes=64 * 2**20,
        page_size=16,
        max_num_batched_tokens=2048,
        tool_call_parser="hermes",
    )
    with running_server(options, wrap=script) as server:
        yield server, made[0]


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_tool_loop(served: tuple[RunningServer, ScriptedForward], tmp_path: Path) -> None:
    server, model = served
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "app.py").write_text("PORT = 5432\n")
    seed = model.will_say(
        "I look. " + call("read", path="app.py") + call("search", pattern="PORT"),
        call("patch", path="app.py", old="5432", new="5433") + call("run", command="cat app.py"),
        "The port is 5433 now.",
    )
    seen = Seen()
    with EventLog.open(tmp_path / "run.db") as log:
        settings = settings_for(
            workspace,
            f"{server.url}/v1",
            model="tiny",
            request={"max_tokens": 300, "seed": seed, "temperature": 0.0},
        )
        begin(log, settings, "Move the port to 5433.")
        assert asyncio.run(run_session(log, workspace, settings.base_url, seen=seen)) == ANSWERED
        answer = [event for event in log.read() if event.kind.value == "assistant"][-1]
        assert log.text(answer) == "The port is 5433 now."
        usage = [event.data for event in log.read() if event.data.get("part") == "usage"]
    assert (workspace / "app.py").read_text() == "PORT = 5433\n"
    assert [outcome.exit_code for _, outcome in seen.ended] == [0, 0, 0, 0]
    assert b"PORT = 5433" in seen.ended[-1][1].payload
    assert len(usage) == 3
    assert usage[0]["cached_tokens"] == 0
    for earlier, later in pairwise(usage):
        assert later["cached_tokens"] > 0.5 * earlier["prompt_tokens"], (
            "policy, tools and task came from the cache"
        )
    server.wait_idle()
