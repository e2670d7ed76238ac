"""A model to ask for one text, such as a summary or a checkpoint, behind any OpenAI-compatible endpoint."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx

Message = Mapping[str, Any]

_NO_SCHEMA = (400, 404, 415, 422, 500, 501)
"""Answers of servers that do not know `response_format`, or not this schema."""
_DEFAULTS = {"temperature": 0}


class ModelError(RuntimeError):
    """The model gave no answer. The message says what was asked and what came back."""


class ChatModel(Protocol):
    """Answers a conversation with text. Nothing that it says is trusted."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """The assistant's answer to `messages` (`role`, `content`). Raises `ModelError` if there is none.

        `json_schema`: what the answer should follow, a wish: servers without structured output ignore it.
        """
        ...


class HttpChatModel:
    """`POST {base_url}/chat/completions`. `options` go into every request as they are (`seed`, `top_p`, …).

    Where the server refuses a schema, it is asked again without one, and with none from then on.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._transport = transport
        self._options = options
        self._takes_schemas = True

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        body = {"model": self._model, "messages": list(messages), "max_tokens": max_tokens}
        body |= _DEFAULTS | self._options
        if json_schema is not None and self._takes_schemas:
            response = await self._post(body | {"response_format": _response_format(json_schema)})
            if response.status_code not in _NO_SCHEMA:
                return self._answer(response)
            self._takes_schemas = False
        return self._answer(await self._post(body))

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        try:
            async with httpx.AsyncClient(timeout=self._timeout_s, transport=self._transport) as client:
                return await client.post(self._url, json=body, headers=self._headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ModelError(f"{self._url}: {type(error).__name__} {error}".rstrip()) from None

    def _answer(self, response: httpx.Response) -> str:
        if response.status_code != 200:
            raise ModelError(f"{self._url}: status {response.status_code}: {response.text[:300]}")
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise ModelError(f"{self._url}: no chat completion: {response.text[:300]}") from None
        return _text(content, self._url)


class SdkChatModel:
    """A client of the OpenAI SDK's form, such as `openai.AsyncOpenAI`: `client.chat.completions.create(…)` is awaited.

    A request with a schema that fails is made again without one.
    """

    def __init__(self, client: Any, model: str, **options: Any) -> None:
        self._client = client
        self._model = model
        self._options = options

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        json_schema: Mapping[str, Any] | None = None,
    ) -> str:
        body = {"model": self._model, "messages": list(messages), "max_tokens": max_tokens}
        body |= _DEFAULTS | self._options
        if json_schema is not None:
            try:
                return await self._create(body | {"response_format": _response_format(json_schema)})
            except ModelError:
                pass  # It may be the schema that the server does not take.
        return await self._create(body)

    async def _create(self, body: Mapping[str, Any]) -> str:
        try:
            answer = await self._client.chat.completions.create(**body)
            content = answer.choices[0].message.content
        except (
            Exception
        ) as error:  # Whatever the client's library raises: the caller goes on without a model.
            raise ModelError(f"{type(error).__name__}: {error}") from None
        return _text(content, "the client")


def _response_format(json_schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json_schema}}


def _text(content: Any, source: str) -> str:
    if not isinstance(content, str) or not content.strip():
        raise ModelError(f"{source}: an empty answer")
    return content
