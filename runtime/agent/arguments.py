"""The tools that the model is offered, and what it may give them."""

import json
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deeproot.runtime.agent.stream import Call


class BadCallError(Exception):
    """A call that cannot be made. The text says what is wrong and what to do, for the model."""


class Arguments(BaseModel):
    """Base of all. Their fields and docstrings are the schemas that the model sees."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Read(Arguments):
    """Show a text file of the workspace, or the names in a folder."""

    path: str = Field(description="relative to the workspace")
    first: int = Field(1, ge=1, description="first line to show")
    lines: int | None = Field(None, ge=1, description="how many lines; all if left out")


class Search(Arguments):
    """Find lines in the workspace's text files by a regular expression. Folders of version control, of installed packages
    and of caches are left out."""

    pattern: str = Field(description="Python regular expression, searched in each line", min_length=1)
    path: str = Field(".", description="folder or file to search")


class Write(Arguments):
    """Create a file, or replace all of one that you have read."""

    path: str = Field(description="relative to the workspace; missing folders are made")
    content: str = Field(description="all of the file")


class Patch(Arguments):
    """Replace one passage of a file."""

    path: str = Field(description="relative to the workspace")
    old: str = Field(
        description="the passage, exactly as it stands in the file, and in it only once", min_length=1
    )
    new: str = Field(description="what to put there; empty to delete the passage")


class Run(Arguments):
    """Run a shell command in the workspace's folder. No input, and no network unless the user allowed it; what it starts
    ends with it."""

    command: str = Field(description="for bash", min_length=1)
    timeout_s: float | None = Field(None, gt=0, description="shorter time limit, in seconds")


TOOLS: dict[str, type[Arguments]] = {
    "read": Read,
    "search": Search,
    "write": Write,
    "patch": Patch,
    "run": Run,
}
_MALFORMED = "malformed"
READERS = ("read", "search")
"""Tools without side effects: they may run beside each other, and again."""


def schemas(names: Collection[str]) -> list[dict[str, Any]]:
    """The named tools in OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": " ".join((TOOLS[name].__doc__ or "").split()),
                "parameters": _without_titles(TOOLS[name].model_json_schema()),
            },
        }
        for name in names
    ]


def parse(call: Call, names: Collection[str]) -> Arguments:
    """The call's arguments, checked. Raises BadCallError."""
    if call.name not in names:
        raise BadCallError(f"unknown tool: there is no tool {call.name!r}; call one of {', '.join(names)}")
    try:
        given = json.loads(call.arguments or "{}")
        if isinstance(given, dict) and set(given) == {_MALFORMED}:
            json.loads(str(given[_MALFORMED]))
    except (ValueError, RecursionError) as error:
        raise BadCallError(
            f"malformed arguments: what you gave {call.name} is no JSON ({error}); {_shape(call.name)}"
        ) from None
    try:
        return TOOLS[call.name].model_validate(given)
    except ValidationError as error:
        faults = "; ".join(_fault(dict(one)) for one in error.errors(include_url=False)[:5])
        raise BadCallError(f"wrong arguments of {call.name}: {faults}; {_shape(call.name)}") from None


def sendable(call: Call) -> Call:
    """The call as it can go back into a conversation: arguments that are no JSON object, which servers and chat templates
    refuse, become one that quotes them."""
    try:
        if isinstance(json.loads(call.arguments), dict):
            return call
    except (ValueError, RecursionError):
        pass
    return Call(call.id, call.name, json.dumps({_MALFORMED: call.arguments}) if call.arguments else "{}")


def _fault(error: dict[str, Any]) -> str:
    where = ".".join(map(str, error["loc"]))
    message = str(error["msg"])
    message = message[0].lower() + message[1:]
    return f"{where}: {message}" if where else message


def _shape(name: str) -> str:
    fields = TOOLS[name].model_fields
    needed = [key for key, field in fields.items() if field.is_required()]
    others = [key for key in fields if key not in needed]
    more = f" and, if you like, {', '.join(others)}" if others else ""
    return f"give one JSON object with {', '.join(needed)}{more}"


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        left = {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str)) and key != "description"
        }
        # of the fields, not of the tool: that stands beside the parameters
        if "description" in schema and schema.get("type") != "object":
            left["description"] = schema["description"]
        return left
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema
