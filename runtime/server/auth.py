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
        request.state.api_key_digest = b""
        if not self._digests:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not scheme and "x-api-key" in request.headers:
            # As Anthropic's clients send it.
            scheme, token = "bearer", request.headers["x-api-key"]
        given = _digest(token.strip())
        # Every key is compared, so that the time says nothing about which one was near.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "The API key is missing or wrong: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.api_key_digest = given


def owner_of(request: Request) -> str:
    """Who sent a request that `KeyCheck` let pass: a digest of the key; empty where none is asked for."""
    digest: bytes = request.state.api_key_digest
    return digest.hex()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
