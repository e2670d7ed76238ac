"""Errors in the form that Anthropic's clients read: `{"type": "error", "error": {type, message}}`."""

import msgspec

from deeproot.runtime.server.errors import ApiError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> bytes:
    """The error as JSON. Its form has no place for the field's name, so that goes before the message."""
    message = error.message
    if error.param and not message.startswith(error.param):
        message = f"{error.param}: {message}"
    kind = _TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
