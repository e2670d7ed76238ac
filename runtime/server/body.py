"""From a request's bytes to a checked schema, with errors that name the field."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pydantic_core
from fastapi import Request
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from deeproot.runtime.server.errors import ApiError, invalid
from deeproot.runtime.server.schemas import RequestModel
from deeproot.runtime.server.state import state_of

LARGE_BODY_BYTES = 64 * 1024
"""From here on a body is parsed in a thread, so that other streams go on meanwhile."""

_COMPONENT = "#/components/schemas/{model}"

Model = TypeVar("Model", bound=RequestModel)
Path = tuple[int | str, ...]


def json_body(model: type[Model], max_bytes: int) -> Callable[[Request], Awaitable[Model]]:
    """A dependency that reads a request's body as `model`. The content type does not matter."""

    async def read(request: Request) -> Model:
        body = await read_limited(request, max_bytes)
        if len(body) < LARGE_BODY_BYTES:
            return parse_body(model, body)
        return await asyncio.to_thread(parse_body, model, body)

    return read


def openapi_body(model: type[RequestModel]) -> dict[str, Any]:
    """The part of an operation in the OpenAPI document that describes such a body; see `openapi_schemas`."""
    schema = {"$ref": _COMPONENT.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def openapi_schemas(models: Sequence[type[RequestModel]]) -> dict[str, Any]:
    """The components of the OpenAPI document that `openapi_body` refers to."""
    _, top = models_json_schema([(model, "validation") for model in models], ref_template=_COMPONENT)
    definitions: dict[str, Any] = top["$defs"]
    return definitions


async def read_limited(request: Request, max_bytes: int) -> bytes:
    """The whole body, or a 413 as soon as it is known to be longer than `max_bytes`, or a 408 if it does not come."""
    timeout = state_of(request).options.limits.upload_timeout_s
    try:
        async with asyncio.timeout(timeout):
            return await _read_limited(request, max_bytes)
    except TimeoutError:
        raise ApiError(
            408,
            f"The body has not arrived within {timeout:g} s.",
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None


async def _read_limited(request: Request, max_bytes: int) -> bytes:
    too_large = ApiError(
        413, f"The body is larger than this server's limit of {max_bytes} bytes.", code="request_too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


def parse_body(model: type[Model], body: bytes) -> Model:
    """Raises ApiError (400) that names the offending field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _explain_json(error, body) from None


def _explain_json(error: ValidationError, body: bytes) -> ApiError:
    try:
        data = pydantic_core.from_json(body)
    except ValueError as problem:
        return invalid(f"The body is not valid JSON: {problem}.", code="invalid_json")
    return explain(error, data)


def explain(error: ValidationError, data: Any) -> ApiError:
    """The error (400) about the field of `data` that does not fit, and what it should be."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    placed = [(_path_in(data, detail["loc"], detail["type"] == "missing"), detail) for detail in details]
    best = max((_closeness(path, detail["type"]) for path, detail in placed))
    path = next(path for path, detail in placed if _closeness(path, detail["type"]) == best)
    messages = dict.fromkeys(detail["msg"] for other, detail in placed if other == path)
    name = _dotted(path)
    return invalid(f"{name or 'The body'}: {', or: '.join(messages)}.", name or None, code="invalid_value")


def _closeness(path: Path, kind: str) -> tuple[bool, int, int]:
    """How near an error is to what the sender meant: of a union's alternatives, the best fit explains best."""
    last = path[-1] if path else 0
    return not kind.endswith("_type"), len(path), last if isinstance(last, int) else 0


def _path_in(data: Any, location: Path, missing: bool) -> Path:
    """Where a location of pydantic's is in the data: without the names of a union's alternatives.

    `missing`: the last part is a key that should be there.
    """
    path: list[int | str] = []
    for index, part in enumerate(location):
        if isinstance(part, int):
            if isinstance(data, list) and part < len(data):
                path.append(part)
                data = data[part]
        elif isinstance(data, dict) and (part in data or (missing and index == len(location) - 1)):
            path.append(part)
            data = data.get(part)
    return tuple(path)


def _dotted(path: Path) -> str:
    """`messages[0].content`"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
