"""Explanations of several keys and salts: each owner sees its own."""

from collections.abc import Iterator

import httpx
import pytest

from deeproot.runtime.options import EngineOptions, ServerOptions

from .explaining import ASK, ask, explained, fresh
from .harness import RunningServer, running_server


def test_salts_share_nothing(server: RunningServer) -> None:
    messages = [fresh("salt"), ASK]
    first = ask(server.url, messages, cache_salt="a")
    assert explained(ask(server.url, messages, cache_salt="a"))["cause"] is None
    for other in ({"cache_salt": "b"}, {}):
        found = explained(ask(server.url, messages, **other))
        assert found["misses"][-1] == {"cause": "first_seen", "tokens": found["misses"][-1]["tokens"]}
        assert found["matched_tokens"] < 30
        assert found["ceiling_tokens"] < 30
        assert found["divergence"] is None or found["divergence"]["earlier"] != first["id"]
    told = explained(ask(server.url, messages, cache_salt="c", deeproot={"since": first["id"]}))
    assert told["cause"] == "salt"
    server.wait_idle()


@pytest.fixture
def with_keys(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(tiny_options, ServerOptions(port=0, api_keys=("one", "two"))) as server:
        yield server


def test_explanations_are_shown_to_their_owner_only(with_keys: RunningServer) -> None:
    url = with_keys.url
    keys = [{"Authorization": f"Bearer {key}"} for key in ("one", "two")]
    messages = [fresh("secret"), ASK]
    mine = ask(url, messages, headers=keys[0])
    theirs = ask(url, messages, headers=keys[1])
    assert explained(theirs)["matched_tokens"] == 0
    assert explained(theirs)["ceiling_tokens"] == 0
    path = f"{url}/v1/explanations"
    for headers, own in zip(keys, (mine, theirs), strict=True):
        listed = httpx.get(path, headers=headers).json()["data"]
        assert [one["id"] for one in listed] == [own["id"]]
        assert httpx.get(f"{path}/{own['id']}", headers=headers).json() == explained(own)
    hidden = httpx.get(f"{path}/{mine['id']}", headers=keys[1])
    missing = httpx.get(f"{path}/{mine['id'][:-1]}x", headers=keys[1])
    assert hidden.status_code == missing.status_code == 404
    assert httpx.get(path).status_code == 401
    for limit in ("0", "x", "", "1001", "9" * 5000):
        assert httpx.get(path, headers=keys[0], params={"limit": limit}).status_code == 400
    # A request that names one of another key's learns nothing from it.
    named = ask(url, [fresh("other"), ASK], headers=keys[1], deeproot={"since": mine["id"]})
    assert explained(named)["cause"] == "first_seen"
