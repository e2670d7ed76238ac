"""Chatting with a served model: a small client of the chat completions API."""

import time
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from deeproot.runtime.chat_reply import ChatFailed, Message, Reply
from deeproot.runtime.http_api import bearer, lines_of, server_base, stream_events
from deeproot.runtime.sampling_options import SamplingOptions

_CONNECT_S = 10.0


class RemoteChat:
    """A model behind a URL."""

    def __init__(self, url: str, api_key: str, sampling: SamplingOptions) -> None:
        """`url`: the server's address, with or without `/v1`."""
        # No limit on reading: a long prompt may take its time before the first token.
        self._http = httpx.Client(
            base_url=server_base(url),
            headers=bearer(api_key),
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
        )
        self._sampling = sampling
        self.name = self._model_name()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def stream(self, messages: Sequence[Message], reply: Reply) -> Generator[str, None, None]:
        """The reply's text in pieces; `reply` is filled in on the way. Leaving early ends the request."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self._sampling.max_tokens,
            "temperature": self._sampling.temperature,
        }
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ChatFailed(_error_text(response))
                yield from _pieces(lines_of(response.iter_bytes()), reply)
        except httpx.HTTPError as error:
            raise ChatFailed(f"the connection failed: {error}") from None

    def _model_name(self) -> str:
        try:
            response = self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise ChatFailed(f"no server answers at {self._http.base_url}: {error}") from None
        except httpx.InvalidURL as error:
            raise ChatFailed(f"--url is not an address: {error}") from None
        if response.status_code != 200:
            raise ChatFailed(_error_text(response))
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ChatFailed(
                f"what answers at {self._http.base_url} is not an OpenAI-compatible server"
            ) from None


def _pieces(lines: Iterator[str], reply: Reply) -> Iterator[str]:
    for chunk in stream_events(lines):
        if "error" in chunk:
            raise ChatFailed(chunk["error"]["message"])
        usage = chunk.get("usage")
        if usage:
            reply.prompt_tokens = usage["prompt_tokens"]
            reply.output_tokens = usage["completion_tokens"]
            reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content")
            if piece:
                reply.first_piece_at = reply.first_piece_at or time.perf_counter()
                yield piece


def _error_text(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the server answered {response.status_code} {response.reason_phrase}"
