"""Fields that are wrong are a 400 that names them; fields that ask for nothing are let through."""

from typing import Any

import httpx
import pytest

from .harness import RunningServer, chat_body
from .refusals import CHAT, TEXT, TOOL, messages, the_error

WRONG_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({}, "messages", "required"),
    (messages(), "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "array"),
    (messages("hi"), "messages[0]", "object"),
    (messages({"content": "hi"}), "messages[0].role", "required"),
    (messages({"role": "boss", "content": "hi"}), "messages[0].role", "boss"),
    (messages({"role": "user", "content": 5}), "messages[0].content", "string"),
    (messages({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text", "string"),
    (
        messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "messages[0].content[0].type",
        "image_url",
    ),
    (
        messages({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
        "messages[0].tool_calls[0].function.arguments",
        "JSON",
    ),
    (chat_body("x", model=7), "model", "string"),
    (chat_body("x", stream="yes"), "stream", "boolean"),
    (chat_body("x", temperature="hot"), "temperature", "number"),
    (chat_body("x", temperature=-1), "temperature", "between 0 and 100"),
    (chat_body("x", top_p=0), "top_p", "above 0"),
    (chat_body("x", top_p=1.5), "top_p", "between 0 and 1"),
    (chat_body("x", top_k=-2), "top_k", "-2"),
    (chat_body("x", top_k=2.5), "top_k", "integer"),
    (chat_body("x", min_p=2), "min_p", "between 0 and 1"),
    (chat_body("x", seed=2**64), "seed", "64 bits"),
    (chat_body("x", seed=1.5), "seed", "integer"),
    (chat_body("x", max_tokens=0), "max_tokens", "at least 1"),
    (chat_body("x", max_completion_tokens=-3), "max_completion_tokens", "at least 1"),
    (chat_body("x", stop=3), "stop", "string"),
    (chat_body("x", stop=["a", 3]), "stop[1]", "string"),
    (chat_body("x", stop=["a"] * 17), "stop", "at most 16"),
    (chat_body("x", stop_token_ids=[258]), "stop_token_ids", "0 to 257"),
    (chat_body("x", n=0), "n", "between 1 and 128"),
    (chat_body("x", n=129), "n", "between 1 and 128"),
    (chat_body("x", min_tokens=3, max_tokens=2), "min_tokens", "between 0 and the 2"),
    (chat_body("x", repetition_penalty=0), "repetition_penalty", "above 0"),
    (chat_body("x", frequency_penalty=2.5), "frequency_penalty", "between -2 and 2"),
    (chat_body("x", presence_penalty="much"), "presence_penalty", "number"),
    (chat_body("x", logit_bias={"5": 101}), "logit_bias", "between -100 and 100"),
    (chat_body("x", logit_bias={"258": 1}), "logit_bias", "0 to 257"),
    (chat_body("x", logit_bias={"five": 1}), "logit_bias", "token ids"),
    (chat_body("x", logit_bias={"9" * 5000: 1}), "logit_bias", "token ids"),
    (chat_body("x", logit_bias={"5": "a"}), "logit_bias.5", "number"),
    (chat_body("x", logit_bias={str(i): 1 for i in range(1025)}), "logit_bias", "1024"),
    (
        chat_body("x", continue_final_message=True, add_generation_prompt=True),
        "add_generation_prompt",
        "set it to false",
    ),
    (chat_body("x", stream_options={"include_usage": True}), "stream_options", "stream to true"),
    (
        chat_body("x", stream=True, stream_options={"include_usage": 1}),
        "stream_options.include_usage",
        "boolean",
    ),
    (chat_body("x", tools={}), "tools", "array"),
    (chat_body("x", tools=[{"type": "function"}]), "tools[0].function", "required"),
    (chat_body("x", tools=[{"type": "retrieval", "function": {"name": "f"}}]), "tools[0].type", "function"),
    (chat_body("x", tools=[TOOL], tool_choice="any"), "tool_choice", "must be 'auto'"),
    (chat_body("x", tool_choice="required"), "tool_choice", "give tools"),
    (
        chat_body("x", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
        "tool_choice",
        "'g'",
    ),
    (chat_body("x", chat_template_kwargs={"messages": []}), "chat_template_kwargs", "messages"),
    (chat_body("x", logprobs=3), "logprobs", "boolean"),
    (chat_body("x", top_logprobs=3), "top_logprobs", "set logprobs to true"),
    (chat_body("x", logprobs=True, top_logprobs=21), "top_logprobs", "between 0 and 20"),
    (chat_body("x", prompt_logprobs=1), "prompt_logprobs", "not supported"),
    (chat_body("x", response_format={"type": "yaml"}), "response_format.type", "json_schema"),
    (
        chat_body("x", response_format={"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}),
        "response_format.json_schema.schema",
        "Invalid type: strin",
    ),
    (
        chat_body("x", guided_regex="(", response_format={"type": "text"}),
        "guided_regex",
        "unclosed group",
    ),
    (chat_body("x", structured_outputs={"regex": "a", "choice": ["b"]}), "structured_outputs", "exactly one"),
    (chat_body("x", guided_choice=["a"], ignore_eos=True), "ignore_eos", "leave it out"),
    (chat_body("x", functions=[{"name": "f"}]), "functions", "not supported"),
]
WRONG_TEXT: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "required"),
    ({"prompt": 5}, "prompt", "string"),
    ({"prompt": {"a": 1}}, "prompt", "string"),
    ({"prompt": []}, "prompt", "empty list"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": ["a", ""]}, "prompt[1]", "empty"),
    ({"prompt": [1, "a"]}, "prompt[1]", "integer"),
    ({"prompt": [[1], ["a"]]}, "prompt[1][0]", "integer"),
    ({"prompt": [1, 999]}, "prompt", "999"),
    ({"prompt": ["a"] * 129}, "prompt", "128"),
    ({"prompt": "x", "echo": 1}, "echo", "boolean"),
    ({"prompt": "x", "logprobs": 21}, "logprobs", "between 0 and 20"),
    ({"prompt": "x", "logprobs": True}, "logprobs", "integer"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens", "at least 1"),
    ({"prompt": "x", "best_of": 3}, "best_of", "leave best_of out"),
    ({"prompt": ["x", "y"], "n": 65}, "n", "at most 128"),
    ({"prompt": "x", "structured_outputs": {"json": {"not": {}}}}, "structured_outputs", "Unimplemented"),
    ({"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
]


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [(CHAT, *case) for case in WRONG_CHAT] + [(TEXT, *case) for case in WRONG_TEXT],
)
def test_a_wrong_field_is_a_400_that_names_it(
    server: RunningServer, path: str, body: dict[str, Any], param: str, says: str
) -> None:
    response = httpx.post(server.url + path, json=body)
    error = the_error(response)
    assert response.status_code == 400, error
    assert error["param"] == param
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"no_such_field": [1, 2]},
        {"logprobs": False, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0},
        {"top_logprobs": 0, "min_tokens": 0, "repetition_penalty": 1, "add_generation_prompt": True},
        {"response_format": {"type": "text"}, "n": 1, "user": "somebody", "metadata": {"a": "b"}},
        {"temperature": None, "stop": None, "tools": None, "seed": None, "stream": None, "max_tokens": None},
        {"stop": ""},
        {"tool_choice": "auto"},
        {"seed": -5, "top_k": -1},
        {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_fields_that_ask_for_nothing_are_let_through(server: RunningServer, fields: dict[str, Any]) -> None:
    response = httpx.post(server.url + CHAT, json=chat_body("x", **{"max_completion_tokens": 2, **fields}))
    assert response.status_code == 200, response.text


def test_content_may_be_null_parts_or_developers(server: RunningServer) -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": None},
        {"role": "user"},
    ]
    response = httpx.post(server.url + CHAT, json={"messages": turns, "max_tokens": 1})
    assert response.status_code == 200, response.text
