"""The requests of `hints_live`: agents who pause for tools, and single prompts beside them, each as its client sees it."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from deeproot.bench.hints_trace import Message, Session, Shape, Step, made_call, singles, tools
from deeproot.runtime.http_api import Lines, stream_events

CALL_TOKENS = 512
"""Of a call at most: enough where a token is a byte and the model writes all the white space that it may."""
_COLD_TOKENS = 8
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Answered:
    """One request as its client saw it. `error`: why it was refused or failed."""

    kind: str
    ttft_s: float | None = None
    prompt: int = 0
    cached: int = 0
    calls: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None


@dataclass(slots=True)
class _Reply:
    """What has come of a stream."""

    first: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Raises ValueError for an error in the stream."""
        if chunk.get("error"):
            raise ValueError(json.dumps(chunk["error"]))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            # The server sends nothing of a choice before its first token.
            self.first = self.first or time.perf_counter()
            for part in choice["delta"].get("tool_calls") or ():
                if part.get("id"):
                    function = {"name": part["function"]["name"], "arguments": ""}
                    self.calls.append({"id": part["id"], "type": "function", "function": function})
                self.calls[-1]["function"]["arguments"] += part["function"].get("arguments") or ""


async def ask(http: httpx.AsyncClient, kind: str, messages: Sequence[Message], **fields: Any) -> Answered:
    """A streamed chat completion. What fails is said in the answer."""
    session = fields.pop("session", None)
    headers = {} if session is None else {"X-Deeproot-Session": session}
    body = {"messages": messages, "temperature": 0, "stream": True, **fields}
    body["stream_options"] = {"include_usage": True}
    start, reply = time.perf_counter(), _Reply()
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.is_error:
                text = (await response.aread()).decode(errors="replace")
                return Answered(kind, error=f"{response.status_code}: {text[:200]}")
            lines = Lines()
            async for part in response.aiter_bytes():
                for event in stream_events(lines.feed(part)):
                    reply.take(event)
    except (httpx.HTTPError, ValueError) as error:
        return Answered(kind, error=f"{type(error).__name__}: {error}")
    if reply.first is None or not reply.usage:
        return Answered(kind, error="the stream ended without a token or without usage")
    cached = reply.usage["prompt_tokens_details"]["cached_tokens"]
    prompt = reply.usage["prompt_tokens"]
    return Answered(kind, reply.first - start, prompt, cached, tuple(reply.calls))


async def turn(http: httpx.AsyncClient, session: Session, step: Step) -> Answered:
    """An agent's next request. One that is refused goes on as if it had been answered, so that the trace stays the same."""
    found = await ask(
        http,
        "agent",
        session.messages(),
        session=session.name,
        tools=tools(),
        tool_choice={"type": "function", "function": {"name": step.tool}},
        max_tokens=CALL_TOKENS,
    )
    session.answered(found.calls or [made_call(step.tool)], step)
    if found.error is None and not found.calls:
        return replace(found, error="the reply is no call, though the request forces one")
    return found


async def single(http: httpx.AsyncClient, messages: Sequence[Message]) -> Answered:
    return await ask(http, "cold", messages, max_tokens=_COLD_TOKENS)


async def timed(http: httpx.AsyncClient, shape: Shape, seed: int) -> list[Answered]:
    """Each agent's next request when its tool has ended, and single prompts at their times."""
    answers: list[Answered] = []

    async def agent(session: Session, delay: float) -> None:
        await asyncio.sleep(delay)
        for step in session.steps:
            answers.append(await turn(http, session, step))
            await asyncio.sleep(step.pause_s)

    async def one(at: float, messages: Sequence[Message]) -> None:
        await asyncio.sleep(at)
        answers.append(await single(http, messages))

    agents = (agent(Session(shape, seed, i), i * shape.pace) for i in range(shape.sessions))
    await asyncio.gather(*agents, *(one(at, messages) for at, messages in singles(shape, seed)))
    return answers


async def in_turns(http: httpx.AsyncClient, shape: Shape, seed: int) -> list[Answered]:
    """One request at a time: each agent's turn, then a share of the single prompts, and so on."""
    answers: list[Answered] = []
    sessions = [Session(shape, seed, i) for i in range(shape.sessions)]
    cold = [messages for _, messages in singles(shape, seed)]
    for i in range(shape.turns):
        for session in sessions:
            found = await turn(http, session, session.steps[i])
            answers.append(found)
        for messages in cold[len(cold) * i // shape.turns : len(cold) * (i + 1) // shape.turns]:
            found = await single(http, messages)
            answers.append(found)
    return answers


async def play(url: str, shape: Shape, seed: int, *, one_by_one: bool) -> tuple[list[Answered], float]:
    """All requests of the trace, and the seconds that all took."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as http:
        start = time.perf_counter()
        answers = await (in_turns if one_by_one else timed)(http, shape, seed)
        return answers, time.perf_counter() - start
