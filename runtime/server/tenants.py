"""Whose request it is: what decides which cached prefixes it may share, and whose texts an explanation may show."""

import hashlib

from fastapi import Request

from deeproot.runtime.explain.history import Tenant


def tenant_of(request: Request, salt: str | None) -> Tenant:
    """The tenant of an authorised request. salt: the body's `cache_salt`."""
    owner: bytes = request.state.api_key_digest
    if not owner and not salt:
        return Tenant()
    parts = owner + (salt or "").encode("utf-8", "surrogatepass")
    return Tenant(owner, hashlib.blake2b(parts, key=b"namespace", digest_size=16).digest())
