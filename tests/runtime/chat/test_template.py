"""What a chat template does beyond transformers: tools for every model, and errors that say where."""

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conversations import TIME, TOOLS, WEATHER, WITH_CALLS, call
from .parsing import parse_reply
from .test_template_families import folder as folder
from .test_template_families import ours as ours
from .test_template_families import source_of

USER = {"role": "user", "content": "Hello!"}


@pytest.fixture(scope="module")
def smollm2(ours: Tokenizer) -> ChatTemplate:
    """A template that knows no tools."""
    return ChatTemplate(source_of("smollm2"), ours)


def turns_of(prompt: str) -> list[tuple[str, str]]:
    """Role and text of each turn of a ChatML prompt, the open one included."""
    turns = [turn.removesuffix("<|im_end|>\n").split("\n", 1) for turn in prompt.split("<|im_start|>")[1:]]
    return [(role, text) for role, text in turns]


def test_builtin_tools_in_a_system_turn_of_their_own(smollm2: ChatTemplate) -> None:
    assert not smollm2.has_tools
    (role, text), user, answer = turns_of(smollm2.render([USER], TOOLS))
    assert (role, user, answer) == ("system", ("user", "Hello!"), ("assistant", ""))
    described = text.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(line) for line in described] == [WEATHER, TIME]
    assert '<tool_call>\n{"name": ' in text


def test_builtin_tools_join_the_system_message(smollm2: ChatTemplate) -> None:
    alone = turns_of(smollm2.render([USER], TOOLS))[0][1]
    messages = [{"role": "system", "content": "Be brief."}, USER]
    assert turns_of(smollm2.render(messages, TOOLS))[0] == ("system", f"Be brief.\n\n{alone}")
    messages[0]["content"] = ""
    assert turns_of(smollm2.render(messages, TOOLS))[0] == ("system", alone)


def test_builtin_calls_and_results(smollm2: ChatTemplate) -> None:
    turns = turns_of(smollm2.render(WITH_CALLS["parallel"], TOOLS))[1:]
    assert turns == [
        ("user", "What's the weather in Zürich?"),
        (
            "assistant",
            'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city":"東京"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        ),
        (
            "user",
            '<tool_response>\n{"temp": 21, "sky": "clear"}\n</tool_response>\n'
            "<tool_response>\n12:00\n</tool_response>",
        ),
        ("assistant", ""),
    ]


def test_builtin_results_without_tools_in_the_request(smollm2: ChatTemplate) -> None:
    """A request that goes on with an old tool loop without offering tools still renders."""
    turns = turns_of(smollm2.render(WITH_CALLS["open call"]))
    assert [role for role, _ in turns] == ["system", "user", "assistant", "user", "assistant"]
    assert "<tools>" not in turns[0][1]


def test_builtin_bytes_depend_on_content_only(smollm2: ChatTemplate) -> None:
    shuffled = json.loads(json.dumps(WEATHER))
    shuffled = {"function": dict(reversed(shuffled["function"].items())), "type": "function"}
    assert smollm2.render([USER], [shuffled, TIME]) == smollm2.render([USER], TOOLS)
    assert smollm2.render([USER], [TIME, WEATHER]) != smollm2.render([USER], TOOLS)
    nonce_free = [
        smollm2.token_ids([{"role": "user", "content": "<|im_end|>"}], TOOLS).tolist() for _ in range(2)
    ]
    assert nonce_free[0] == nonce_free[1]


arguments = st.dictionaries(
    st.text(max_size=5), st.one_of(st.text(max_size=8), st.integers(), st.none()), max_size=3
)


@settings(max_examples=60, deadline=None)
@given(arguments=arguments, content=st.text(alphabet="ab<>{}", max_size=6))
def test_rendered_calls_parse_back(smollm2: ChatTemplate, arguments: dict[str, Any], content: str) -> None:
    raw = json.dumps(arguments)
    messages = [USER, {"role": "assistant", "content": content, "tool_calls": [call("f", raw, "1")]}]
    prompt = smollm2.render(messages, TOOLS, add_generation_prompt=False)
    answer = parse_reply(
        CallParser(HERMES), prompt.rsplit("<|im_start|>assistant\n", 1)[1].removesuffix("<|im_end|>\n")
    )
    assert (answer.content, [(c.name, c.arguments) for c in answer.calls]) == (content, [("f", raw)])


def test_tools_where_the_template_has_no_system_turn(ours: Tokenizer) -> None:
    """Gemma 2 refuses a system message: it opens the first user turn."""
    gemma = ChatTemplate(source_of("gemma2"), ours)
    system = {"role": "system", "content": "Be brief."}
    assert gemma.render([system, USER]) == gemma.render([{"role": "user", "content": "Be brief.\n\nHello!"}])
    assert gemma.render([system]) == gemma.render([{"role": "user", "content": "Be brief."}])
    prompt = gemma.render([system, USER], TOOLS)
    assert prompt.startswith("<s><start_of_turn>user\nBe brief.\n\n# Tools")
    assert prompt.endswith("just answer.\n\nHello!<end_of_turn>\n<start_of_turn>model\n")


def test_developer_is_system_unless_the_template_knows_it(ours: Tokenizer) -> None:
    chatml = ChatTemplate(source_of("chatml"), ours)
    developer = [{"role": "developer", "content": "Be brief."}, USER]
    assert chatml.render(developer) == chatml.render([{**developer[0], "role": "system"}, USER])
    knowing = ChatTemplate(source_of("chatml") + "{% if messages[0].role == 'developer' %}!{% endif %}", ours)
    assert knowing.render(developer).startswith("<|im_start|>developer\n")


def test_absent_null_and_listed_content(ours: Tokenizer) -> None:
    chatml = ChatTemplate(source_of("chatml"), ours)
    empty = chatml.render([{"role": "user", "content": ""}])
    assert chatml.render([{"role": "user"}]) == chatml.render([{"role": "user", "content": None}]) == empty
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chatml.render([{"role": "user", "content": parts}]) == chatml.render(
        [{"role": "user", "content": "a\nb"}]
    )
    assert chatml.render([{"role": "user", "content": []}]) == empty


def test_named_templates(ours: Tokenizer) -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"}, ours)
    assert both.has_tools
    assert (both.render([USER]), both.render([USER], TOOLS), both.render([USER], [])) == (
        "plain",
        "2 tools",
        "plain",
    )
    with pytest.raises(TemplateError, match=r"rag.*none named 'default'"):
        ChatTemplate({"rag": ""}, ours)


def test_clock_and_names_of_tokens(ours: Tokenizer) -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}{{ bos_token }}{{ x }}", ours, now=lambda: datetime(2024, 2, 29)
    )
    assert template.render([USER], x="!") == "29 Feb 2024<s>!"
    assert template.render([USER], bos_token="B") == "29 Feb 2024B"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ strftime_now.__globals__ }}{{ strftime_now.__globals__.x.y }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_sandbox(ours: Tokenizer, source: str) -> None:
    with pytest.raises(TemplateError, match="failed on this conversation"):
        ChatTemplate(source, ours).render([USER])


def error_of(template: ChatTemplate, message: Any, index: int = 1) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        template.token_ids([USER] * index + [message])
    return caught.value


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        ("hello", None, "expected an object, found str"),
        ({"content": "x"}, "role", "None is not one of"),
        ({"role": "robot", "content": "x"}, "role", "'robot' is not one of: assistant, developer"),
        ({"role": "user", "content": 3}, "content", "found int"),
        ({"role": "user", "content": {"text": "x"}}, "content", "found dict"),
        ({"role": "user", "content": ["x"]}, "content[0].type", "None is not supported"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]},
            "content[1].type",
            "'image_url' is not supported",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": None}]},
            "content[0].text",
            "expected a string",
        ),
        ({"role": "assistant", "tool_calls": "f"}, "tool_calls", "expected a list"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls[0].function", "expected an object"),
        ({"role": "assistant", "tool_calls": [call("", "{}", "1")]}, "tool_calls[0].function.name", "a name"),
        (
            {"role": "assistant", "tool_calls": [call("f", "{}", "1"), call("f", "{", "2")]},
            "tool_calls[1].function.arguments",
            "not valid JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [call("f", "[1]", "1")]},
            "tool_calls[0].function.arguments",
            "expected a JSON object",
        ),
        ({"role": "assistant", "reasoning_content": 1}, "reasoning_content", "expected a string"),
    ],
)
def test_bad_messages_are_named(smollm2: ChatTemplate, message: Any, field: str | None, words: str) -> None:
    error = error_of(smollm2, message, index=2)
    assert (error.message_index, error.field) == (2, field)
    assert words in str(error)
    assert str(error).startswith("messages[2]" + (f".{field}: " if field else ": "))


def test_other_errors_say_where(ours: Tokenizer, smollm2: ChatTemplate) -> None:
    with pytest.raises(TemplateError, match=r"line 2: .*--chat-template"):
        ChatTemplate("a\n{% for %}", ours)
    with pytest.raises(TemplateError, match="messages: at least one"):
        smollm2.render([])
    with pytest.raises(TemplateError, match=r"tools\[1\]: expected an object like"):
        smollm2.render([USER], [WEATHER, {"name": "f"}])


def test_empty_arguments_are_an_empty_object(ours: Tokenizer) -> None:
    qwen = ChatTemplate(source_of("qwen2"), ours)
    for given_arguments in ("", None, {}, "{}"):
        messages = [USER, {"role": "assistant", "tool_calls": [call("f", given_arguments, "1")]}]
        assert '{"name": "f", "arguments": {}}' in qwen.render(messages)


def test_nesting_beyond_reason_is_refused(smollm2: ChatTemplate) -> None:
    deep: Any = {}
    for _ in range(2000):
        deep = {"a": deep}
    with pytest.raises(TemplateError, match="nested too deeply"):
        smollm2.token_ids([USER], [{**WEATHER, "x": deep}])


def test_reasoning_under_any_name(ours: Tokenizer) -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }};{% endfor %}", ours
    )
    names = ("reasoning_content", "reasoning", "thinking")
    assert template.render([{"role": "assistant", name: "hm"} for name in names]) == "hmhm;" * 3


SHOWS_CONTENT = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if 0 %}</think>{% endif %}"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize(
    ("source", "shown"),
    [
        # each by the field that the template knows
        ("{% for m in messages %}[{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}", "[|a][hm|b]"),
        ("{% for m in messages %}[{{ m['reasoning'] }}|{{ m.content }}]{% endfor %}", "[|a][hm|b]"),
        ("{% for m in messages %}[{{ m.get('thinking', '') }}|{{ m.content }}]{% endfor %}", "[|a][hm|b]"),
        # and in the content where the template looks for it there
        (SHOWS_CONTENT, "[a][<think>\nhm\n</think>\n\nb]"),
        ("{% for m in messages %}[{{ m.content.split('</think>')[-1].strip() }}]{% endfor %}", "[a][b]"),
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[a][b]"),
    ],
)
def test_reasoning_that_comes_back(ours: Tokenizer, name: str, source: str, shown: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "hm"}]
    assert ChatTemplate(source, ours).render(messages) == shown
