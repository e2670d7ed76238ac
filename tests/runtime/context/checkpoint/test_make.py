"""A checkpoint by a model: asked, refused with what was wrong, asked again, and the ledger in the end."""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deeproot.runtime.context.chat_model import ChatModel, HttpChatModel, ModelError, SdkChatModel
from deeproot.runtime.context.checkpoint.files import Workspace
from deeproot.runtime.context.checkpoint.make import AuditedCheckpoint, ledger_checkpoint, make_checkpoint
from deeproot.runtime.context.checkpoint.proposal import Proposal
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.options import EngineOptions

from ...server.harness import RunningServer, ScriptedForward, running_server
from ...tiny_model import write_tiny_model
from .runs import make_run


class Answers:
    """A model that gives these answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked: list[list[Mapping[str, Any]]] = []
        self.schemas: list[Mapping[str, Any] | None] = []

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        self.asked.append(list(messages))
        self.schemas.append(json_schema)
        answer = self._answers.pop(0)
        if answer == "down":
            raise ModelError("the server is down")
        return answer


@pytest.fixture
def run(tmp_path: Path) -> tuple[EventLog, Workspace]:
    return make_run(random.Random(5), tmp_path, turns=6)


def make(run: tuple[EventLog, Workspace], client: ChatModel | None, **options: Any) -> AuditedCheckpoint:
    return asyncio.run(make_checkpoint(run[0], files=run[1], client=client, **options))


def good(run: tuple[EventLog, Workspace], **changes: Any) -> str:
    """What an honest model would answer: two milestones, newest first, without what the host knows better."""
    ledger = ledger_checkpoint(run[0], files=run[1]).checkpoint
    milestones = [
        {"event": m.event, "call_id": m.call_id, "exit_code": m.exit_code} for m in ledger.milestones[:2]
    ]
    return json.dumps(
        {
            "milestones": milestones[::-1],
            "hypothesis": "The port is wrong.",
            "artifacts": [{"path": "src/alloc.c", "ranges": [[1, 1]]}],
            **changes,
        }
    )


def bad(run: tuple[EventLog, Workspace]) -> str:
    said = json.loads(good(run))
    said["milestones"][0]["exit_code"] = 77
    return json.dumps(said)


def test_a_true_answer_is_taken_and_completed_from_log_and_disk(run: tuple[EventLog, Workspace]) -> None:
    client = Answers(good(run))
    made = make(run, client)
    ledger = ledger_checkpoint(run[0], files=run[1]).checkpoint
    assert (made.source, made.attempts) == ("model", ())
    assert made.checkpoint.milestones == tuple(
        m.model_copy(update={"proof": ""}) for m in ledger.milestones[:2]
    )
    assert (made.checkpoint.goal, made.checkpoint.constraints) == (ledger.goal, ledger.constraints)
    assert made.checkpoint.artifacts[0].hash == next(
        a.hash
        for a in ledger_checkpoint(run[0], files=run[1]).checkpoint.artifacts
        if a.path == "src/alloc.c"
    )
    assert client.schemas == [Proposal.model_json_schema()]


def test_a_false_answer_is_told_what_the_log_says_and_asked_once_more(
    run: tuple[EventLog, Workspace],
) -> None:
    client = Answers(bad(run), f"Here it is:\n```json\n{good(run)}\n```")
    made = make(run, client)
    assert made.source == "model"
    (refused,) = made.attempts
    assert refused.reasons[0].field == "milestones[1].exit_code"
    before, answer, diagnostic = client.asked[1][-3:]
    assert before == client.asked[0][-1]
    assert answer == {"role": "assistant", "content": bad(run)}
    assert str(refused.reasons[0]) in diagnostic["content"]
    assert f"(event {refused.reasons[0].event})" in diagnostic["content"]


@pytest.mark.parametrize(
    "answer", ["no JSON", "{}", '{"milestones": 3}', "{" * 3000, '{"goal": "x"', "\ud800{}", ""]
)
def test_what_is_no_proposal_is_refused_as_such(answer: str, run: tuple[EventLog, Workspace]) -> None:
    made = make(run, Answers(answer, answer))
    assert made.source == "ledger"
    assert [attempt.reasons[0].gate for attempt in made.attempts] == ["schema", "schema"]


def test_after_the_last_try_the_ledger_stands(run: tuple[EventLog, Workspace]) -> None:
    made = make(run, Answers(bad(run), bad(run), good(run)))
    assert (made.source, len(made.attempts)) == ("ledger", 2)
    assert made.digest == ledger_checkpoint(run[0], files=run[1]).digest
    assert make(run, Answers(bad(run), bad(run), good(run)), tries=3).source == "model"
    assert make(run, Answers(), tries=0).source == "ledger"
    with pytest.raises(ValueError, match="tries is -1"):
        make(run, None, tries=-1)


def test_a_model_that_cannot_be_reached_costs_a_try(run: tuple[EventLog, Workspace]) -> None:
    made = make(run, Answers("down", good(run)))
    assert (made.source, made.attempts[0].error) == ("model", "the server is down")
    assert make(run, Answers("down", "down")).source == "ledger"


def test_a_goal_or_constraint_that_the_model_changes_is_refused(run: tuple[EventLog, Workspace]) -> None:
    made = make(run, Answers(good(run, goal="Do something easier."), good(run, constraints=[])))
    assert made.source == "ledger"
    assert [attempt.reasons[0].gate for attempt in made.attempts] == ["goal", "constraints"]


def test_the_conversation_stays_in_front_so_that_its_prefix_is_cached(
    run: tuple[EventLog, Workspace],
) -> None:
    client = Answers(good(run))
    conversation = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    make(run, client, messages=conversation)
    assert client.asked[0][:2] == conversation
    assert len(client.asked[0]) == 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """This project's server with a tiny random model and room for the request."""
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=16_384)
    options = EngineOptions(
        model=str(folder), load_format="dummy", device="cpu", kv_cache_memory_bytes=32 << 20
    )
    with running_server(
        options, wrap=lambda engine: ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer)
    ) as running:
        yield running


class PerAnswer:
    """The server, with another seed for each answer."""

    def __init__(self, url: str, seeds: list[int]) -> None:
        self._clients = [HttpChatModel(f"{url}/v1", "tiny", seed=seed) for seed in seeds]

    async def complete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return await self._clients.pop(0).complete(messages, **options)


def test_over_http_with_a_server_of_our_own(server: RunningServer, run: tuple[EventLog, Workspace]) -> None:
    forward = server.engine.scheduler.runner
    assert isinstance(forward, ScriptedForward)
    made = make(run, PerAnswer(server.url, [forward.will_say(bad(run)), forward.will_say(good(run))]))
    assert (made.source, len(made.attempts)) == ("model", 1)


def test_an_answer_that_keeps_nothing_is_refused(run: tuple[EventLog, Workspace]) -> None:
    made = make(run, Answers(good(run, milestones=[]), good(run)))
    assert "the log has 6 results" in str(made.attempts[0].reasons[0])
    assert made.source == "model"


@pytest.mark.parametrize("max_tokens", [40, 250])
def test_a_model_that_writes_noise_gets_the_ledger(
    max_tokens: int, server: RunningServer, run: tuple[EventLog, Workspace]
) -> None:
    """Held to the schema by the server, it writes well-formed noise, cut off or whole: true it is not."""
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    made = make(run, SdkChatModel(client, "tiny", seed=1, temperature=1.0), max_tokens=max_tokens)
    assert (made.source, len(made.attempts)) == ("ledger", 2)
    assert all(attempt.reasons for attempt in made.attempts)


def test_a_server_without_schemas_is_asked_without() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        bodies.append(body)
        if "response_format" in body:
            return httpx.Response(400, json={"error": {"message": "unknown field"}})
        return httpx.Response(200, json={"choices": [{"message": {"content": "hello"}}]})

    model = HttpChatModel("http://x/v1", "m", transport=httpx.MockTransport(answer))
    for _ in range(2):
        assert asyncio.run(model.complete([], max_tokens=1, json_schema={"type": "object"})) == "hello"
    assert ["response_format" in body for body in bodies] == [True, False, False]


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (httpx.Response(503, text="busy"), "status 503: busy"),
        (httpx.Response(200, text="<html>"), "no chat completion"),
        (httpx.Response(200, json={"choices": [{"message": {"content": None}}]}), "an empty answer"),
    ],
)
def test_answers_that_are_none(response: httpx.Response, says: str) -> None:
    model = HttpChatModel("http://x/v1", "m", transport=httpx.MockTransport(lambda request: response))
    with pytest.raises(ModelError, match=says):
        asyncio.run(model.complete([], max_tokens=1))


def test_an_address_where_nobody_listens() -> None:
    with pytest.raises(ModelError, match="ConnectError"):
        asyncio.run(HttpChatModel("http://127.0.0.1:9/v1", "m").complete([], max_tokens=1))
