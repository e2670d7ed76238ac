"""The cache of a running server, for Python: what it holds of a prompt, and what an edit would cost."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from deeproot.runtime.cache_price import Probed
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.http_api import bearer, server_base
from deeproot.runtime.warm_pieces import WARM_LEASE_S

Prompt = str | TokenIds | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or messages."""


class CacheError(Exception):
    """The server does not answer, or refuses; the text says why."""


class CacheClient:
    """`with CacheClient("http://127.0.0.1:8000") as cache: cache.probe(["Once upon a time"])`"""

    def __init__(
        self, base_url: str, *, api_key: str = "", cache_salt: str | None = None, timeout_s: float = 30.0
    ) -> None:
        """base_url: with or without `/v1`. cache_salt: of the requests that are meant."""
        self._http = httpx.Client(base_url=server_base(base_url), headers=bearer(api_key), timeout=timeout_s)
        self._salt: dict[str, Any] = {} if cache_salt is None else {"cache_salt": cache_salt}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def probe(self, prompts: Sequence[Prompt]) -> Probed:
        """How much of each prompt is cached; prompts are texts, token ids or messages. Raises CacheError."""
        told = self.post("/v1/cache/probe", {"prompts": [source_of(prompt) for prompt in prompts]})
        return Probed(
            tuple(one["prompt_tokens"] for one in told["prompts"]),
            tuple(one["cached_tokens"] for one in told["prompts"]),
            told["tokens_per_second"],
        )

    def price(self, old: Prompt, new: Prompt, **prices: float) -> dict[str, Any]:
        """What `/v1/cache/price` says of sending `new` in the place of `old`. Raises CacheError."""
        return self.post("/v1/cache/price", {"old": source_of(old), "new": source_of(new), **prices})

    def warm(self, prompt: Prompt, *, lease_s: float = WARM_LEASE_S, wait: bool = False) -> dict[str, Any]:
        """Have a prompt computed while nobody else wants the engine. Raises CacheError."""
        return self.post("/v1/cache/warm", {**source_of(prompt), "lease_s": lease_s, "wait": wait})

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a JSON body. Raises CacheError."""
        try:
            answer = self._http.post(path, json={**self._salt, **body})
            data = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise CacheError(f"no deeproot server answers at {self._http.base_url}: {error}") from None
        if answer.status_code != 200:
            said = data.get("error", {}) if isinstance(data, dict) else {}
            raise CacheError(str(said.get("message", f"status {answer.status_code}")))
        found: dict[str, Any] = data
        return found


def source_of(prompt: Prompt) -> dict[str, Any]:
    """A prompt in the form of the server's bodies."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if len(prompt) and isinstance(prompt[0], Mapping):
        return {"messages": list(prompt)}
    return {"token_ids": np.asarray(prompt, dtype=np.int32).tolist()}
