"""One streamed request as its client sees it."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from deeproot.bench.live.asks import Ask
from deeproot.runtime.http_api import Lines


@dataclass(slots=True)
class Answer:
    """What came of an ask. Times in seconds from when it was sent; `pieces`: of each piece of text.

    `prompt_tokens`, `cached_tokens`, `output_tokens`: as the server says; None if it does not. `error`: why it failed.
    """

    session: str
    turn: int
    sent_s: float
    pieces: list[float] = field(default_factory=list)
    total_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    said: str = ""
    ended: bool = False
    """Whether the server said why it stopped; an answer may have no text, and then has no time to its first."""

    @property
    def ttft_s(self) -> float | None:
        return self.pieces[0] if self.pieces else None

    @property
    def tpot_s(self) -> float | None:
        """From the first piece to the last, by the tokens behind the first; None for one token."""
        if self.output_tokens is None or self.output_tokens < 2 or len(self.pieces) < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.output_tokens - 1)


class Server:
    """An OpenAI-compatible server at `url`, which ends in /v1."""

    def __init__(
        self, name: str, url: str, api_key: str, model: str | None, timeout_s: float = 600.0
    ) -> None:
        self.name = name
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.AsyncClient(headers=headers, timeout=timeout_s, limits=limits)
        self.model = model or ""

    async def find_model(self) -> None:
        """Take the first model that it names, unless one was given. Raises ValueError, naming the URL."""
        if self.model:
            return
        try:
            found = (await self.http.get(f"{self.url}/models")).raise_for_status().json()
            self.model = str(found["data"][0]["id"])
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"{self.url}/models does not answer as an OpenAI-compatible server ({error or type(error).__name__});"
                " is the server up, and does the URL end in /v1?"
            ) from None

    async def ask(self, ask: Ask, origin: float, on_piece: Callable[[Answer], None] | None = None) -> Answer:
        """Send it and follow its stream. What fails is said in the answer.

        origin: of `sent_s`, by perf_counter. on_piece: is shown the answer as it grows.
        """
        path = "chat/completions" if ask.messages else "completions"
        start = time.perf_counter()
        answer = Answer(ask.session, ask.turn, start - origin)
        try:
            async with self.http.stream("POST", f"{self.url}/{path}", json=ask.body(self.model)) as response:
                if response.is_error:
                    text = (await response.aread()).decode(errors="replace")
                    answer.error = f"status {response.status_code}: {text[:300]}"
                    return answer
                lines = Lines()
                async for part in response.aiter_bytes():
                    now = time.perf_counter() - start
                    for line in lines.feed(part):
                        if line.startswith("data:") and line[5:].strip() != "[DONE]":
                            _take(answer, json.loads(line[5:]), now)
                            if on_piece is not None:
                                on_piece(answer)
        except (httpx.HTTPError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.total_s = time.perf_counter() - start
        if answer.error is None and not answer.pieces and not answer.ended:
            answer.error = "the stream broke off: the server sent neither text nor an end"
        return answer


def _take(answer: Answer, chunk: Mapping[str, Any], now: float) -> None:
    if chunk.get("error"):
        answer.error = json.dumps(chunk["error"])[:300]
        return
    usage = chunk.get("usage")
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        answer.prompt_tokens = usage.get("prompt_tokens")
        answer.output_tokens = usage.get("completion_tokens")
        answer.cached_tokens = details.get("cached_tokens")
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta") or {}
        answer.ended = answer.ended or choice.get("finish_reason") is not None
        text = delta.get("content") or delta.get("reasoning_content") or choice.get("text") or ""
        if text or delta.get("tool_calls"):
            answer.pieces.append(now)
            answer.said += text
