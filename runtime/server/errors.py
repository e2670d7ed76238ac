"""Errors in the form that OpenAI clients read: `{"error": {message, type, param, code}}`."""

import logging
from collections.abc import Callable, Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from deeproot.runtime.client import EngineUnavailable, QueueFull
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.server.disconnect import ClientGone

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
CLIENT_CLOSED = 499
"""Status for a client that has left: nobody reads it, but logs of what stands in front of us may show it."""


class ApiError(Exception):
    """An answer other than success, to be sent to the client as it stands."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        error = {
            "message": self.message,
            "type": _error_type(self.status),
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    def about(self, param: str) -> "ApiError":
        """The same error, on another field."""
        message = self.message
        if self.param and message.startswith(self.param):
            message = param + message.removeprefix(self.param)
        return ApiError(self.status, message, param=param, code=self.code, headers=self.headers)

    def response(self, body: bytes | None = None) -> Response:
        """`body`: the error in another form than OpenAI's."""
        return Response(body or self.body, self.status, self.headers, media_type="application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request cannot be served as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str) -> ApiError:
    """A 503: not now."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": str(RETRY_AFTER_S)})


def as_api_error(error: Exception) -> ApiError:
    """The answer to a failure inside a handler."""
    match error:
        case ApiError():
            return error
        case OptionError():
            return invalid(str(error), error.field)
        case EngineUnavailable():
            return unavailable(str(error))
        case QueueFull():
            return ApiError(429, str(error), code="queue_full", headers={"Retry-After": str(RETRY_AFTER_S)})
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "The server has failed on this request; its log says why.", code="internal_error")


def install_error_handlers(app: FastAPI, other_forms: Mapping[str, Callable[[ApiError], bytes]]) -> None:
    """Send every failure in OpenAI's form, but under the path prefixes of `other_forms` in theirs."""

    async def answer(request: Request, error: Exception) -> Response:
        failure = as_api_error(error)
        for prefix, form in other_forms.items():
            if request.url.path == prefix or request.url.path.startswith(f"{prefix}/"):
                return failure.response(form(failure))
        return failure.response()

    async def nobody_listens(_: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    app.add_exception_handler(ClientDisconnect, nobody_listens)
    app.add_exception_handler(ClientGone, nobody_listens)
    for kind in (ApiError, OptionError, EngineUnavailable, QueueFull, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _error_type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 404:
            return "not_found_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"
