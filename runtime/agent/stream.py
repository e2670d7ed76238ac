"""One reply of a model behind any OpenAI-compatible server, in pieces; a call is told as soon as it is whole."""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from deeproot.runtime.chat.json_scanner import JsonObjectScanner, JsonStatus
from deeproot.runtime.http_api import Lines

_CONNECT_S = 10.0
_BUSY = (408, 409, 425, 429, 500, 502, 503, 504)


class ModelError(Exception):
    """The server refused, or what it sent is no reply; asking again would not help. One line, for the user."""


class BrokenReplyError(Exception):
    """No reply, or only the beginning of one; asking again may help. `after_s`: how long the server asks to wait."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model made it. `arguments`: the text, which may be no JSON."""

    id: str
    name: str
    arguments: str

    def as_message(self) -> dict[str, Any]:
        """In OpenAI's form."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server counted. `cached` None: it does not say."""

    prompt: int
    output: int
    cached: int | None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply's words, or of its reasoning."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The reply is whole. `reason`: as the server says (`stop`, `tool_calls`, `length`, …)."""

    reason: str
    usage: Usage | None


Piece = Text | Call | End


class Server:
    """`POST {base_url}/chat/completions`. `base_url` with its `/v1`. `transport`: for tests."""

    def __init__(
        self, base_url: str, *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # No limit on reading: a long prompt may take its time before the first token.
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        # Certificates are loaded only where they are asked for: that takes a third of a second.
        encrypted = not self.base_url.startswith("http://")
        self._http = httpx.AsyncClient(
            headers=headers, timeout=timeout, transport=transport, verify=encrypted
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def model(self) -> tuple[str, int | None]:
        """Name of the first model that is served, and its window in tokens if the server says. Raises ModelError."""
        url = f"{self.base_url}/models"
        try:
            response = await self._http.get(url)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ModelError(f"no server answers at {url}: {error or type(error).__name__}") from None
        try:
            if response.status_code != 200:
                raise ModelError(_error_text(response.status_code, response.content))
            first = response.json()["data"][0]
            window = first.get("max_model_len")
            return str(first["id"]), window if isinstance(window, int) and window > 0 else None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ModelError(
                f"what answers at {url} is not an OpenAI-compatible server; give --model"
            ) from None

    async def reply(self, body: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """The pieces of the reply, `End` last. Closing the iterator ends the request. Raises ModelError and
        BrokenReplyError."""
        url = f"{self.base_url}/chat/completions"
        options = {"stream": True, "stream_options": {"include_usage": True}}
        reader = _Reader()
        try:
            async with self._http.stream("POST", url, json={**body, **options}) as response:
                if response.status_code != 200:
                    _raise_for(response, await response.aread())
                lines = Lines()
                async for part in response.aiter_bytes():
                    for line in lines.feed(part):
                        for piece in reader.line(line):
                            yield piece
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BrokenReplyError(f"the connection failed: {error or type(error).__name__}") from None
        for piece in reader.end():
            yield piece


@dataclass(slots=True)
class _Open:
    """A call of which more may come."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    scanner: JsonObjectScanner = field(default_factory=JsonObjectScanner)
    told: bool = False


class _Reader:
    """Lines of the event stream to pieces."""

    def __init__(self) -> None:
        self._calls: dict[Any, _Open] = {}
        self._reason: str | None = None
        self._usage: Usage | None = None

    def line(self, line: str) -> list[Piece]:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data in ("", "[DONE]"):
            return []
        try:
            chunk = json.loads(data)
        except ValueError:
            raise BrokenReplyError(f"the server sent no JSON: {data[:100]}") from None
        if not isinstance(chunk, Mapping):
            raise BrokenReplyError(f"the server sent no object: {data[:100]}")
        if chunk.get("error"):
            raise BrokenReplyError(f"the server ended the reply: {_message_of(chunk['error'])}")
        try:
            return self._chunk(chunk)
        except (TypeError, AttributeError, KeyError, ValueError):
            raise BrokenReplyError(f"the server sent no chat completion chunk: {data[:100]}") from None

    def end(self) -> list[Piece]:
        """What is left when the stream has ended. Raises BrokenReplyError if the reply had not."""
        if self._reason is None:
            raise BrokenReplyError("the stream ended before the reply did")
        return [*self._all_told(), End(self._reason, self._usage)]

    def _chunk(self, chunk: Mapping[str, Any]) -> list[Piece]:
        usage = chunk.get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens")
            prompt = int(usage["prompt_tokens"])
            self._usage = Usage(
                prompt, int(usage["completion_tokens"]), None if cached is None else min(int(cached), prompt)
            )
        pieces: list[Piece] = []
        for choice in (chunk.get("choices") or [])[:1]:
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if isinstance(thought, str):
                pieces.append(Text(thought, reasoning=True))
            if delta.get("content"):
                pieces.append(Text(str(delta["content"])))
            for part in delta.get("tool_calls") or []:
                pieces += self._call(part)
            if choice.get("finish_reason"):
                self._reason = str(choice["finish_reason"])
                pieces += self._all_told()
        return pieces

    def _call(self, part: Mapping[str, Any]) -> list[Piece]:
        """Take a piece of a call; a call that it completes, and those before one that it begins."""
        key = part.get("index")
        if key is None:  # Some servers send each call whole, and number none.
            key = part.get("id") or max(self._calls, default=0, key=str)
        begun = key not in self._calls
        pieces = self._all_told() if begun else []
        call = self._calls.setdefault(key, _Open())
        function = part.get("function") or {}
        call.id = call.id or str(part.get("id") or "")
        name = str(function.get("name") or "")
        call.name += name if name != call.name else ""  # some servers repeat it with each piece
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
        if call.told and text.strip():
            raise BrokenReplyError(f"the server sent more arguments after those of {call.name} were whole")
        call.arguments += text
        if call.scanner.status is JsonStatus.OPEN:
            call.scanner.feed(text)
        # A complete object may be followed by nothing but white space.
        return pieces + (self._told(call) if call.scanner.status is JsonStatus.DONE else [])

    def _told(self, call: _Open) -> list[Piece]:
        if call.told:
            return []
        call.told = True
        return [Call(call.id, call.name, call.arguments)]

    def _all_told(self) -> list[Piece]:
        return [piece for call in self._calls.values() for piece in self._told(call)]


def _raise_for(response: httpx.Response, content: bytes) -> None:
    message = _error_text(response.status_code, content)
    if response.status_code not in _BUSY:
        raise ModelError(message)
    try:
        after = float(response.headers.get("retry-after", ""))
    except ValueError:
        after = None
    raise BrokenReplyError(message, after)


def _error_text(status: int, content: bytes) -> str:
    try:
        said = _message_of(json.loads(content)["error"])
    except (ValueError, LookupError, TypeError):
        said = content[:200].decode("utf-8", "replace").strip()
    return f"the server answered {status}: {said}" if said else f"the server answered {status}"


def _message_of(error: Any) -> str:
    return str(error.get("message") or error) if isinstance(error, Mapping) else str(error)
