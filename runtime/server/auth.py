"""API keys, compared in constant time."""

import hashlib
import hmac
from collections.abc import Sequence

from fastapi import Request

from deeproot.runtime.server.errors import ApiError


class KeyCheck:
    """A dependency that lets a request pass if it bears one of the keys, or if there are none."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, request: Request) -> None:
        if not self._digests:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = _digest(token.strip())
        # Every key is compared, so that the time says nothing about which one was near.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        request.state.api_key_digest = given
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
