"""Strategies that ask a model, against a running server whose model says what the test needs."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import openai
import pytest

from deeproot.runtime.context.chat_model import ChatModel, HttpChatModel, SdkChatModel
from deeproot.runtime.context.compaction.compactor import Outcome, Status
from deeproot.runtime.context.compaction.strategies import CITED, JOINT
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.options import EngineOptions

from ...server.harness import RunningServer, ScriptedForward, running_server
from ...tiny_model import write_tiny_model
from .conftest import MakeCompactor, MakeSet, room, shown
from .runs import chatter, shell, start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=32_768)
    options = EngineOptions(
        model=str(model), load_format="dummy", dtype="float32", device="cpu", page_size=16,
        kv_cache_memory_bytes=16 * 2**20, max_num_seqs=4, max_num_batched_tokens=2_048,
    )  # fmt: skip
    with running_server(
        options, wrap=lambda engine: ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer)
    ) as running:
        yield running


class Scripted:
    """A real client of a real server; each request has its own answer. `asked`: what was sent."""

    def __init__(self, server: RunningServer, answers: Sequence[str], *, sdk: bool = False) -> None:
        script = server.engine.scheduler.runner
        assert isinstance(script, ScriptedForward)
        base_url = f"{server.url}/v1"
        self._models: list[ChatModel] = []
        for answer in answers:
            seed = script.will_say(answer)
            if sdk:
                client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
                self._models.append(SdkChatModel(client, "tiny", seed=seed))
            else:
                self._models.append(HttpChatModel(base_url, "tiny", seed=seed))
        self.asked: list[Sequence[Mapping[str, Any]]] = []

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        self.asked.append(messages)
        # No schema: the script stands for a model that was not held to one.
        return await self._models[len(self.asked) - 1].complete(messages, max_tokens=max_tokens)


def answer(**fields: list[str]) -> str:
    return json.dumps({"hypotheses": [], "commands": [], "failures": [], "ruled_out": [], **fields})


def run(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog, model: ChatModel, strategy: object
) -> Outcome:
    start(log)
    shell(log, 0, "pytest -q", "FAILED tests/test_auth.py::test_a - assert 1 == 2\n1 failed", 1)
    for i in range(1, 7):
        shell(log, i, f"make part{i}", chatter(i, 240 if i < 4 else 20), exit_code=0)
    # Room for one episode: one request, and another if the first answer is refused.
    return room(make_compactor(make_set(), strategy, 8_000, model=model, episode_turns=20), log)


@pytest.mark.parametrize("sdk", [False, True])
def test_a_model_s_summary_is_taken(
    sdk: bool, server: RunningServer, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    model = Scripted(server, [answer(hypotheses=["the cache was stale [#9]"])], sdk=sdk)
    outcome = run(make_compactor, make_set, log, model, JOINT)
    assert (outcome.status, outcome.notes) == (Status.COMPACTED, ())
    assert len(model.asked) == 1
    text = shown(make_set(), log)
    assert "- the cache was stale [#9]" in text
    assert "- make part1 -> exit 0 [#9]" in text  # what the host knows is there though the model left it out
    server.wait_idle()


def test_an_invention_is_refused_and_asked_for_again(
    server: RunningServer, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    invented = answer(failures=["Segmentation fault in part 9"])
    model = Scripted(server, [invented, answer(ruled_out=["a clean build [#9]"])])
    outcome = run(make_compactor, make_set, log, model, CITED)
    assert outcome.status is Status.COMPACTED
    assert "failures[0] is not in the events: 'Segmentation fault in part 9'" in outcome.notes[0]
    assert "Segmentation fault in part 9" in str(
        model.asked[1][-1]["content"]
    )  # the fault is named to the model
    text = shown(make_set(), log)
    assert "a clean build [#9]" in text
    assert "Segmentation" not in text


def test_a_model_that_never_fills_the_template_is_done_without(
    server: RunningServer, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    model = Scripted(server, ["All went well.", '{"hypotheses": []}'])
    outcome = run(make_compactor, make_set, log, model, CITED)
    assert outcome.status is Status.COMPACTED
    assert "holds no JSON object" in outcome.notes[0]
    assert "commands: Field required" in outcome.notes[1]
    assert outcome.notes[2] == "the extractor's instead"
    assert "- make part1 -> exit 0 [#9]" in shown(make_set(), log)
    assert "All went well" not in shown(make_set(), log)


def test_no_server_no_harm(make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog) -> None:
    model = HttpChatModel("http://127.0.0.1:9/v1", "none", timeout_s=2)
    outcome = run(make_compactor, make_set, log, model, JOINT)
    assert outcome.status is Status.COMPACTED
    assert outcome.notes[0].startswith(
        "no model, the extractor's instead: http://127.0.0.1:9/v1/chat/completions"
    )


def test_the_event_loop_is_free_while_a_model_thinks(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    """Events that come meanwhile are kept, and the swap is right for the log as it then is."""
    start(log)
    for i in range(18):
        shell(log, i, f"make part{i}", chatter(i))

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.sleep(0.01)
            return httpx.Response(503)

    async def both() -> Outcome:
        compactor = make_compactor(make_set(), model=HttpChatModel("http://x/v1", "m", transport=Slow()))
        task = asyncio.create_task(compactor.make_room(log))
        await asyncio.sleep(0.002)
        shell(log, 99, "make late", "arrived meanwhile")
        return await task

    assert asyncio.run(both()).status is Status.COMPACTED
    assert "arrived meanwhile" in shown(make_set(), log)
