"""Working sets that a server keeps, from a client's side: each call sends only what is new.

```
with WorkingSets("http://127.0.0.1:8000") as sets:
    run = sets.create(budget=24_000, messages=[{"role": "user", "content": "Fix the tests."}])
    reply = run.complete(max_tokens=200)
    run.append(messages=[{"role": "tool", "tool_call_id": "c1", "content": "3 passed"}])
```
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from deeproot.runtime.http_api import bearer, lines_of, server_base, stream_events

Fields = dict[str, Any]


class RemoteError(RuntimeError):
    """The server refused or could not be reached; the text says why. `status` is 0 if there was no answer."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class WorkingSets:
    """The working sets of one API key on one server. Several threads may use one at a time."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`base_url`: such as `http://127.0.0.1:8000`, with or without `/v1`."""
        url = f"{server_base(base_url)}/v1/working_sets"
        self._url = url
        self._http = httpx.Client(headers=bearer(api_key), timeout=timeout_s, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the sets stay on the server."""
        self._http.close()

    def create(self, *, policy: str = "three_zones", **fields: Any) -> "RemoteWorkingSet":
        """A new set. `fields`: `budget`, the policy's settings, and the first `events`, `messages` and `tools`."""
        made = self.call("POST", "", {"policy": policy, **fields}).json()
        return RemoteWorkingSet(self, made["id"], made["num_events"])

    def open(self, set_id: str) -> "RemoteWorkingSet":
        """A set that was made before."""
        return RemoteWorkingSet(self, set_id, self.call("GET", f"/{set_id}").json()["num_events"])

    def all(self) -> list[Fields]:
        """Descriptions of this client's sets, the oldest first."""
        found: list[Fields] = self.call("GET", "").json()["data"]
        return found

    def call(self, method: str, path: str, body: Fields | None = None) -> httpx.Response:
        """One request below `/v1/working_sets`. Raises RemoteError."""
        try:
            response = self._http.request(method, self._url + path, json=body)
        except httpx.HTTPError as error:
            raise RemoteError(0, f"{self._url}{path}: {type(error).__name__} {error}".rstrip()) from None
        _check(response)
        return response

    @contextmanager
    def stream(self, path: str, body: Fields) -> Iterator[Iterator[Fields]]:
        """The events of a streamed answer. Raises RemoteError."""
        try:
            with self._http.stream("POST", self._url + path, json=body) as response:
                if response.status_code != 200:
                    response.read()
                    _check(response)
                yield _events(response)
        except httpx.HTTPError as error:
            raise RemoteError(0, f"{self._url}{path}: {type(error).__name__} {error}".rstrip()) from None


class RemoteWorkingSet:
    """One working set on the server. `num_events` is what this client knows of the log: whatever it appends goes behind that
    or, if somebody else has appended meanwhile, nowhere (RemoteError, status 409)."""

    def __init__(self, sets: WorkingSets, set_id: str, num_events: int) -> None:
        self._sets = sets
        self.set_id = set_id
        self.num_events = num_events

    def append(
        self,
        *,
        events: Sequence[Mapping[str, Any]] = (),
        messages: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Append, all or nothing, and return the number of the newest event."""
        body = self._new(events=events, messages=messages, tools=tools)
        self.num_events = self._sets.call("POST", f"/{self.set_id}/events", body).json()["num_events"]
        return self.num_events

    def complete(self, **fields: Any) -> Fields:
        """Append `events`, `messages` and `tools`, if given, and have the model answer; other `fields` are those of a
        chat completion, and so is the answer. It is in the log when this returns (unless `record=False`)."""
        answer: Fields = self._sets.call("POST", f"/{self.set_id}/complete", self._new(**fields)).json()
        self._note(answer)
        return answer

    def stream(self, **fields: Any) -> Iterator[Fields]:
        """As `complete`, the chunks of a chat completion as they come. Read it to its end, or close it."""
        body = self._new(**fields) | {"stream": True}
        with self._sets.stream(f"/{self.set_id}/complete", body) as chunks:
            for chunk in chunks:
                self._note(chunk)
                yield chunk

    def context(self) -> Fields:
        """What the next call would see: messages, tools, token ids, boundaries, report."""
        found: Fields = self._sets.call("GET", f"/{self.set_id}/context").json()
        return found

    def export(self, after: int = 0) -> str:
        """The log as JSON lines, as `runtime.context.jsonl.import_lines` reads them."""
        return self._sets.call("GET", f"/{self.set_id}/events?after={after}").text

    def delete(self) -> None:
        """Have the server forget it, files and all."""
        self._sets.call("DELETE", f"/{self.set_id}")

    def _new(self, **fields: Any) -> Fields:
        given = {name: value for name, value in fields.items() if value is not None}
        return {**given, "after": self.num_events}

    def _note(self, answer: Fields) -> None:
        kept = (answer.get("deeproot") or {}).get("working_set")
        if kept is not None:
            self.num_events = kept["num_events"]


def _events(response: httpx.Response) -> Iterator[Fields]:
    for event in stream_events(lines_of(response.iter_bytes())):
        if "error" in event:
            raise RemoteError(200, event["error"]["message"], event["error"].get("code"))
        yield event


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        error = response.json()["error"]
        raise RemoteError(response.status_code, error["message"], error.get("code"))
    except (ValueError, LookupError, TypeError):
        raise RemoteError(
            response.status_code, f"status {response.status_code}: {response.text[:300]}"
        ) from None
