"""What holds of keys beside that the right ones pass; see also test_errors.py."""

import asyncio
import hmac

import pytest
from fastapi import Request

from deeproot.runtime.options import ServerOptions
from deeproot.runtime.server.auth import KeyCheck
from deeproot.runtime.server.errors import ApiError


def bearing(key: str) -> Request:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    return Request({"type": "http", "headers": headers, "state": {}})


@pytest.mark.parametrize("key", ["first", "second", "third", "fourth", "firs", ""])
def test_every_key_is_compared_in_constant_time_whichever_it_is(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    keys = ("first", "second", "third")
    check = KeyCheck(keys)
    if key in keys:
        asyncio.run(check(bearing(key)))
    else:
        with pytest.raises(ApiError, match="API key"):
            asyncio.run(check(bearing(key)))
    assert lengths == [(32, 32)] * 3, "the time would say how long a key is, or which one was right"


def test_nothing_is_open_to_the_network_or_to_other_sites_unless_asked() -> None:
    options = ServerOptions()
    assert options.host == "127.0.0.1"
    assert not options.cors_origins
