"""Fields of another surface that make no chat completion: an error about what the sender had written."""

from typing import Any

import pytest

from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.translated import translated

MESSAGE = {"role": "user", "content": "Hi."}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [MESSAGE], "reasoning_effort": 3}, "reasoning.effort"),
        ({"messages": [MESSAGE, {"role": 7}]}, "input[4].role"),
        ({"messages": [MESSAGE], "cache_salt": ""}, "cache_salt"),
        ({"messages": []}, "messages"),
    ],
)
def test_the_error_names_the_original_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        translated(fields, ["input[3]", "input[4]"], {"reasoning_effort": "reasoning.effort"})
    assert (caught.value.status, caught.value.param) == (400, param)
