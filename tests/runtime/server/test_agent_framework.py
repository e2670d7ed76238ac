"""An agent framework runs its tool loop against the server, over chat completions and over responses."""

import asyncio
import json
from collections.abc import Sequence

import httpx
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from .harness import RunningServer, ScriptedForward

CALL = '<tool_call>\n{"name": "temperature", "arguments": {"city": "Zürich"}}\n</tool_call>'


class Seeding(httpx.AsyncHTTPTransport):
    """Gives each request the next of some seeds, so that the model answers as a test has scripted."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self._seeds = list(seeds)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        content = json.dumps({**body, "seed": self._seeds.pop(0)}).encode()
        headers = {**request.headers, "content-length": str(len(content))}
        return await super().handle_async_request(
            httpx.Request(request.method, request.url, headers=headers, content=content)
        )


def model_of(kind: str, server: RunningServer, http: httpx.AsyncClient) -> Model:
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http)
    provider = OpenAIProvider(openai_client=client)
    if kind == "chat":
        return OpenAIChatModel("tiny", provider=provider)
    return OpenAIResponsesModel("tiny", provider=provider)


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(server: RunningServer, script: ScriptedForward, kind: str, stream: bool) -> None:
    seeds = [script.will_say(text) for text in ("Let me see. " + CALL, CALL, "It is 21 degrees.")]
    asked: list[str] = []

    async def run() -> tuple[str, int]:
        async with httpx.AsyncClient(transport=Seeding(seeds)) as http:
            agent = Agent(model_of(kind, server, http), instructions="Use the tool.")

            @agent.tool_plain
            def temperature(city: str) -> int:
                """Degrees in a city."""
                asked.append(city)
                return 21

            if not stream:
                result = await agent.run("How warm is it in Zürich?")
                return result.output, len(result.all_messages())
            async with agent.iter("How warm is it in Zürich?") as steps:
                async for node in steps:
                    if Agent.is_model_request_node(node):
                        async with node.stream(steps.ctx) as events:
                            async for _ in events:
                                pass
            assert steps.result is not None
            return steps.result.output, len(steps.result.all_messages())

    output, num_messages = asyncio.run(run())
    assert output == "It is 21 degrees."
    assert asked == ["Zürich", "Zürich"]
    assert num_messages == 6
    server.wait_idle()


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_an_output_type_is_held_to_its_schema(server: RunningServer, kind: str) -> None:
    """Nobody scripts the model here: a random one writes an object of the type."""

    class Point(BaseModel):
        x: bool
        y: bool

    async def run() -> Point:
        async with httpx.AsyncClient() as http:
            agent = Agent(model_of(kind, server, http), output_type=NativeOutput(Point), retries=0)
            return (await agent.run("Where?")).output

    assert isinstance(asyncio.run(run()), Point)
