"""`context_management` over HTTP: what is cleared, what is told, and that the cache is lost in strides only."""

from typing import Any

import httpx
import pytest

from .harness import RunningServer

EDIT = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "input_tokens", "value": 400},
    "keep": {"type": "tool_uses", "value": 1},
    "clear_at_least": {"type": "input_tokens", "value": 150},
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Looks."}}]


def conversation(num_uses: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look around."}]
    for i in range(num_uses):
        call = {"id": f"call{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call{i}", "content": f"{i}" * 150})
    return messages


def ask(server: RunningServer, num_uses: int, **fields: Any) -> Any:
    body = {"messages": conversation(num_uses), "tools": TOOLS, "max_tokens": 1, "temperature": 0, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body)


def test_what_is_cleared_and_told(server: RunningServer) -> None:
    sizes, applied, cached = [], [], []
    for num_uses in range(6):
        reply = ask(server, num_uses, context_management={"edits": [EDIT]}).json()
        sizes.append(reply["usage"]["prompt_tokens"])
        applied.append(reply["deeproot"]["applied_edits"])
        cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
    uses = [edits[0]["cleared_tool_uses"] if edits else 0 for edits in applied]
    assert uses == [0, 0, 0, 2, 2, 4]
    whole = [ask(server, n).json()["usage"]["prompt_tokens"] for n in (3, 5)]
    assert [applied[3][0]["cleared_input_tokens"], applied[5][0]["cleared_input_tokens"]] == [
        whole[0] - sizes[3],
        whole[1] - sizes[5],
    ]
    costs = [edits[0]["recomputed_input_tokens"] if edits else 0 for edits in applied]
    for turn in range(1, 6):
        made_stride = uses[turn] > uses[turn - 1]
        # Between strides all of the turn before is in the cache, but for the opening of a reply.
        assert (cached[turn] < sizes[turn - 1] - 40) == made_stride == (costs[turn] > 0)
    assert "deeproot" not in ask(server, 2).json()


def test_streams_tell_it_too(server: RunningServer) -> None:
    reply = ask(server, 3, context_management={"edits": [EDIT]}, stream=True)
    assert '"cleared_tool_uses":2' in reply.text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"type": "other"}, "context_management.edits[0].type"),
        ({"keep": {"type": "tool_uses", "value": -1}}, "context_management.edits[0].keep.value"),
        ({"trigger": {"type": "time", "value": 1}}, "context_management.edits[0].trigger.type"),
        ({"exclude_tools": [1]}, "context_management.edits[0].exclude_tools[0]"),
    ],
)
def test_what_is_wrong_is_named(server: RunningServer, change: Any, param: str) -> None:
    reply = ask(server, 1, context_management={"edits": [EDIT | change]})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
