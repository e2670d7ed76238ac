"""What browsers may do: a page of somebody else's site must not use a server on its visitor's machine.

A page may send requests to any address, so also to a loopback one; it says where it comes from in `Origin`. And it may
come from a name that its owner lets point to 127.0.0.1 (DNS rebinding); then that name stands in `Host`.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from deeproot.runtime.options import ServerOptions
from deeproot.runtime.server.errors import ApiError


class BrowserGuard:
    """Refuses requests of other sites' pages, and, where no key is asked for, names that are not this server's."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._origins = frozenset(options.cors_origins)
        self._hosts = frozenset((options.host.lower(), *map(str.lower, options.allowed_hosts)))
        # A page under another name has no key, and a server for a network has names that it does not know.
        self._checks_host = not options.api_keys and _is_loopback(options.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response()(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        name = _name_in(host)
        if self._checks_host and not self._is_own(name):
            return ApiError(
                403,
                f"This server does not go by the name {name[:100]!r}: start it with --allowed-hosts if it should.",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return None
        if origin.split("://", 1)[-1].lower() == host.lower():
            return None
        return ApiError(
            403,
            f"Pages of {origin[:100]!r} may not use this server: start it with --cors-origins if they should.",
            code="origin_not_allowed",
        )

    def _is_own(self, name: str) -> bool:
        return name in self._hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _name_in(host: str) -> str:
    """The name in a header without its port; the whole header if it makes no sense."""
    try:
        return (urlsplit(f"//{host}").hostname or host).lower()
    except ValueError:
        return host


def _is_address(name: str) -> bool:
    """An address, not a name: no DNS had a say in it. HTTP/1.0 may leave the host out."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return not name
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
