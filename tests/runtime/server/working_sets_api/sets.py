"""What the tests of working sets share."""

from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.remote_working_sets import RemoteError

TEMPLATE = Path(__file__).parents[2] / "context" / "templates" / "qwen2.5-instruct.jinja"
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    },
}
Fields = dict[str, Any]


def status_of(error: pytest.ExceptionInfo[RemoteError]) -> tuple[int, str | None]:
    return error.value.status, error.value.code
