"""Clients of every kind: patient, hasty, rude, slow, and those that write nonsense."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
TIMEOUT_S = 120.0
"""A request without an answer for so long is lost."""

ANSWERED, LEFT = "answered", "left"

Fields = dict[str, object]


class Wrong(Exception):
    """Something that must not happen; the text says what."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a clean server answers: by prompt and limit, greedily."""

    texts: Mapping[tuple[str, int], str]

    def pick(self, rng: random.Random) -> tuple[str, int]:
        return rng.choice(list(self.texts))

    def check(self, asked: tuple[str, int], text: str) -> None:
        expected = self.texts[asked]
        if text != expected:
            raise Wrong(f"wrong text for {asked[0][:30]!r}: {text[:60]!r} instead of {expected[:60]!r}")


def body_of(asked: tuple[str, int], **fields: object) -> Fields:
    prompt, max_tokens = asked
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}


class Clients:
    """Each method is one request from its beginning to its end, and returns what came of it: `answered`, an error's code,
    or `left` where the client did not wait. Raises Wrong."""

    def __init__(
        self, url: str, port: int, known: Known, rng: random.Random, http: httpx.AsyncClient
    ) -> None:
        self._url = url
        self._port = port
        self._known = known
        self._rng = rng
        self._http = http

    def kinds(self) -> dict[str, tuple[Callable[[], Awaitable[str]], float]]:
        """By name: what it does, and how often, relative to the others."""
        return {
            "whole": (self.whole, 4),
            "streamed": (self.streamed, 4),
            "messages": (self.messages, 1),
            "several": (self.several, 1),
            "sampled": (self.sampled, 1),
            "cancelled": (self.cancelled, 3),
            "left stream": (self.left_stream, 3),
            "deadline": (self.deadline, 1),
            "slow reader": (self.slow_reader, 0.4),
            "malformed": (self.malformed, 2),
            "garbage": (self.garbage, 1),
            "half a body": (self.half_a_body, 0.5),
        }

    async def whole(self) -> str:
        asked = self._known.pick(self._rng)
        response = await self._http.post(CHAT, json=body_of(asked, priority=self._rng.randrange(3)))
        if response.status_code != 200:
            return error_of(response)
        self._known.check(asked, response.json()["choices"][0]["message"]["content"])
        return ANSWERED

    async def streamed(self) -> str:
        asked = self._known.pick(self._rng)
        async with self._http.stream("POST", CHAT, json=body_of(asked, stream=True)) as response:
            if response.status_code != 200:
                await response.aread()
                return error_of(response)
            lines = [line async for line in response.aiter_lines() if line]
        if lines[-1:] != ["data: [DONE]"]:
            raise Wrong(f"a stream without an end: {lines[-1:]}")
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        if "error" in events[-1]:
            return f"stream: {reason_in(events[-1])}"
        self._known.check(asked, "".join(e["choices"][0]["delta"].get("content") or "" for e in events))
        return ANSWERED

    async def messages(self) -> str:
        asked = self._known.pick(self._rng)
        body = {key: value for key, value in body_of(asked).items() if key != "ignore_eos"}
        response = await self._http.post("/v1/messages", json=body)
        return ANSWERED if response.status_code == 200 else error_of(response)

    async def several(self) -> str:
        """Several answers to one prompt: all the same, since they are greedy."""
        asked = self._known.pick(self._rng)
        response = await self._http.post(CHAT, json=body_of(asked, n=3))
        if response.status_code != 200:
            return error_of(response)
        for choice in response.json()["choices"]:
            self._known.check(asked, choice["message"]["content"])
        return ANSWERED

    async def sampled(self) -> str:
        """With logarithms and penalties: other paths through a step."""
        asked = self._known.pick(self._rng)
        fields = {
            "temperature": 1.0,
            "top_p": 0.9,
            "logprobs": True,
            "top_logprobs": 3,
            "presence_penalty": 0.5,
        }
        response = await self._http.post(CHAT, json=body_of(asked, **fields))
        return ANSWERED if response.status_code == 200 else error_of(response)

    async def cancelled(self) -> str:
        asked = asyncio.create_task(self._http.post(CHAT, json=body_of(self._known.pick(self._rng))))
        await asyncio.sleep(self._rng.uniform(0, 0.4))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return LEFT

    async def left_stream(self) -> str:
        after = self._rng.randrange(1, 8)
        async with self._http.stream(
            "POST", CHAT, json=body_of(self._known.pick(self._rng), stream=True)
        ) as response:
            async for _ in response.aiter_lines():
                after -= 1
                if not after:
                    break
        return LEFT

    async def deadline(self) -> str:
        headers = {"X-Deeproot-Timeout": str(self._rng.uniform(0.01, 0.5))}
        response = await self._http.post(CHAT, json=body_of(self._known.pick(self._rng)), headers=headers)
        return ANSWERED if response.status_code == 200 else error_of(response)

    async def slow_reader(self) -> str:
        """Asks for a long stream and reads next to nothing of it."""
        body = body_of(self._known.pick(self._rng), stream=True, n=8, logprobs=True, top_logprobs=20)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2048)
        try:
            writer.write(_request(json.dumps(body).encode()))
            await reader.read(100)
            await asyncio.sleep(self._rng.uniform(0.5, 4))
        finally:
            writer.transport.abort()
        return LEFT

    async def malformed(self) -> str:
        """JSON that is not what is wanted, or none."""
        body = body_of(self._known.pick(self._rng), max_tokens=2)
        changed = {**body, self._rng.choice(list(body)): self._rng.choice(NONSENSE)}
        content = json.dumps(changed).encode()
        if self._rng.random() < 0.5:
            content = content[: self._rng.randrange(len(content))]
        path = self._rng.choice([CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize"])
        response = await self._http.post(path, content=content)
        if response.status_code >= 500 and response.status_code not in (503, 504):
            raise Wrong(f"{path} answers {response.status_code} to {content[:200]!r}")
        return ANSWERED if response.status_code == 200 else error_of(response)

    async def garbage(self) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(self._rng.randbytes(self._rng.randrange(1, 400)))
            await asyncio.sleep(self._rng.uniform(0, 0.1))
        finally:
            writer.transport.abort()
        return LEFT

    async def half_a_body(self) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            content = json.dumps(body_of(self._known.pick(self._rng))).encode()
            request = _request(content)
            writer.write(request[: len(request) - self._rng.randrange(1, len(content))])
            await asyncio.sleep(self._rng.uniform(0, 0.3))
        finally:
            writer.transport.abort()
        return LEFT


NONSENSE: tuple[object, ...] = (
    None, "", "x", -1, 0, 1e308, 10**30, True, [], {}, [[]], [{}], [None], {"role": 1}, "\ud800", [{"role": "user"}],
)  # fmt: skip


def error_of(response: httpx.Response) -> str:
    """The status and the code of an answer that says what is wrong."""
    try:
        return f"{response.status_code}: {reason_in(response.json())}"
    except (ValueError, KeyError, TypeError):
        raise Wrong(f"{response.status_code} without a reason: {response.text[:200]!r}") from None


def reason_in(answer: Any) -> str:
    """The code of an error, or its type where it has none (as Anthropic's have). Raises Wrong if it has no message."""
    error = answer["error"]
    if not error["message"]:
        raise Wrong(f"an error with an empty message: {answer}")
    return str(error.get("code") or error["type"])


def _request(content: bytes) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content
