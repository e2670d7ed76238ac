"""A request of another surface as the chat completion that says the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from deeproot.runtime.server.body import explain
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.schemas import ChatCompletionRequest


@dataclass(frozen=True, slots=True)
class Translated:
    """A chat completion, and what its parts are called where they came from."""

    body: ChatCompletionRequest
    origins: list[str]
    """For each message the original's field that it was made of."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Other fields of the chat completion that the original calls otherwise."""

    def located(self, error: ApiError) -> ApiError:
        """The same error about the original's field."""
        return _located(error, self.origins, self.names)


def translated(
    fields: Mapping[str, Any], origins: list[str], names: Mapping[str, str] | None = None
) -> Translated:
    """The chat completion of these fields. Raises ApiError (400) about the original's field for what is not one."""
    names = names or {}
    try:
        return Translated(ChatCompletionRequest.model_validate(fields), origins, names)
    except ValidationError as error:
        raise _located(explain(error, fields), origins, names) from None


def _located(error: ApiError, origins: list[str], names: Mapping[str, str]) -> ApiError:
    if error.param is None:
        return error
    head = error.param.partition(".")[0]
    for i, origin in enumerate(origins):
        if head.startswith(f"messages[{i}]"):
            return error.about(origin + error.param.removeprefix(f"messages[{i}]"))
    return error.about(names.get(error.param, error.param))
