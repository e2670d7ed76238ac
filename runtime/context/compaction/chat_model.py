"""A model for summaries, behind any OpenAI-compatible endpoint."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx

Message = Mapping[str, str]


class ModelError(RuntimeError):
    """The model gave no answer. The message says what was asked and what came back."""


class ChatModel(Protocol):
    """Answers a conversation with text."""

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        """The assistant's answer to `messages` (`role`, `content`). Raises `ModelError` if there is none."""
        ...


class HttpChatModel:
    """`POST {base_url}/chat/completions`. `options` go into every request as they are (`seed`, `response_format`, …)."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        **options: Any,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._options = options

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        body = {"model": self._model, "messages": list(messages), "max_tokens": max_tokens, **_DEFAULTS}
        try:
            async with httpx.AsyncClient(timeout=self._timeout_s) as client:
                response = await client.post(self._url, json=body | self._options, headers=self._headers)
        except httpx.HTTPError as error:
            raise ModelError(f"{self._url}: {type(error).__name__} {error}".rstrip()) from None
        if response.status_code != 200:
            raise ModelError(f"{self._url}: status {response.status_code}: {response.text[:300]}")
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise ModelError(f"{self._url}: no chat completion: {response.text[:300]}") from None
        return _text(content, self._url)


class SdkChatModel:
    """A client of the OpenAI SDK's form, such as `openai.AsyncOpenAI`: `client.chat.completions.create(…)` is awaited."""

    def __init__(self, client: Any, model: str, **options: Any) -> None:
        self._client = client
        self._model = model
        self._options = options

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        arguments = {"model": self._model, "messages": list(messages), "max_tokens": max_tokens, **_DEFAULTS}
        try:
            answer = await self._client.chat.completions.create(**(arguments | self._options))
            content = answer.choices[0].message.content
        except (
            Exception
        ) as error:  # Whatever the client's library raises: the caller goes on without a model.
            raise ModelError(f"{type(error).__name__}: {error}") from None
        return _text(content, "the client")


_DEFAULTS = {"temperature": 0}


def _text(content: Any, source: str) -> str:
    if not isinstance(content, str) or not content.strip():
        raise ModelError(f"{source}: an empty answer")
    return content
