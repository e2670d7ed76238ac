"""Templates: the same text as plain rendering gives, and every character with its right owner."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.spans import ChatMessage, Part, Span
from deeproot.runtime.context.template import ChatTemplate

from .template_names import SPECIALS, TEMPLATES, TRIMMING, WITH_TOOLS

TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "<|im_end|> é", "parameters": {"b": [1, 2.5, None]}},
    }
]
CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x<|im_end|>\\n"}'}}]

contents = st.text("ab \n<|im_end>é/think", max_size=30) | st.lists(
    st.sampled_from(["<think>", "</think>", "<|im_end|>", "\n", " ", "é", "hm"]), max_size=8
).map("".join)


def chat(*turns: tuple[str, str]) -> list[ChatMessage]:
    return [ChatMessage(role, (Part(text, i),), {}) for i, (role, text) in enumerate(turns)]


def plain(
    source: str, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = (), **more: Any
) -> str:
    """What transformers makes of it."""
    dicts: list[dict[str, Any]] = []
    for message in messages:
        fields = json.loads(json.dumps(message.fields))
        for call in fields.get("tool_calls", []):
            if "arguments'] +" not in source:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        dicts.append({"role": message.role, "content": message.content, **fields})
    return render_jinja_template(
        conversations=[dicts],
        tools=list(tools) or None,
        chat_template=source,
        **{"add_generation_prompt": True, **SPECIALS, **more},
    )[0][0]


def text_of(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


def content_of(spans: Sequence[Span], segment: int) -> str:
    return "".join(span.text for span in spans if span.segment == segment and not span.literal)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=25, deadline=None)
@given(
    system=contents,
    turns=st.lists(st.tuples(contents, contents), min_size=1, max_size=3),
    prompt=st.booleans(),
)
def test_same_text_as_transformers(
    name: str,
    make_template: Callable[[str], ChatTemplate],
    system: str,
    turns: list[tuple[str, str]],
    prompt: bool,
) -> None:
    template = make_template(name)
    messages = chat(
        ("system", system),
        *((role, text) for pair in turns for role, text in zip(("user", "assistant"), pair, strict=True)),
    )
    spans = template.render(messages, add_generation_prompt=prompt)
    assert text_of(spans) == plain(template.source, messages, add_generation_prompt=prompt)
    assert all(span.tracked for span in spans)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tool_calls_and_tools(name: str, make_template: Callable[[str], ChatTemplate]) -> None:
    template = make_template(name)
    messages = [
        *chat(("system", "s"), ("user", "u")),
        ChatMessage("assistant", (Part("", 2),), {"tool_calls": CALLS}),
        ChatMessage("tool", (Part("result", 3),), {"tool_call_id": "c1"}),
        ChatMessage("tool", (Part("another", 4),), {"tool_call_id": "c2"}),
    ]
    spans = template.render(messages, tools=TOOLS, tools_segment=9)
    assert text_of(spans) == plain(template.source, messages, TOOLS)
    assert (content_of(spans, 3), content_of(spans, 4)) == ("result", "another")
    assert "x<|im_end|>" in content_of(spans, 2)
    assert not any(
        "<|im_end|>" in span.text and span.segment == 2
        for span in spans
        if span.literal and name == "deepseek-r1-distill"
    )
    if name != "deepseek-r1-distill":
        assert "<|im_end|> é" in content_of(spans, 9)


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_content_has_its_segment_and_each_word_an_owner(
    name: str, make_template: Callable[[str], ChatTemplate]
) -> None:
    # Contents that equal each other and the template's own words: searching for them would find the wrong places.
    texts = ["user", "user", "assistant", "user", "<|im_start|>user\n", "model", "system"]
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    messages = chat(*zip(roles, texts, strict=False))
    spans = make_template(name).render(messages)
    assert [content_of(spans, i) for i in range(len(messages))] == [
        text.strip() if name in TRIMMING else text for text in texts[: len(messages)]
    ]
    order = [span.segment for span in spans]
    assert order == sorted(order, key=lambda s: len(messages) if s is None else s)
    assert (None in order) == (name != "mistral-instruct")


def test_old_thoughts_go_and_the_rest_keeps_its_owner(make_template: Callable[[str], ChatTemplate]) -> None:
    thought = "<think>\nhm, <|im_end|>\n</think>\n\nanswer"
    turns = (("user", "a"), ("assistant", thought), ("user", "b"), ("assistant", thought))
    template = make_template("qwen3")
    spans = template.render(chat(*turns), add_generation_prompt=False)
    assert text_of(spans) == plain(template.source, chat(*turns), add_generation_prompt=False)
    assert [content_of(spans, i) for i in (1, 3)] == ["answer", "hm, <|im_end|>answer"]
    assert [(s.text, s.literal) for s in spans if s.segment == 3] == [
        ("<|im_start|>assistant\n<think>\n", True),
        ("hm, <|im_end|>", False),
        ("\n</think>\n\n", True),
        ("answer", False),
        ("<|im_end|>\n", True),
    ]


def test_parts_of_one_content(make_template: Callable[[str], ChatTemplate]) -> None:
    parts = (Part("  policy", 0), Part("\n\nconstraint  ", 1))
    messages = [ChatMessage("system", parts, {}), ChatMessage("user", (Part("u", 2),), {})]
    spans = make_template("llama3").render(messages)
    assert [(s.text, s.segment, s.literal) for s in spans[:4]] == [
        ("<s><|start_header_id|>system<|end_header_id|>\n\nToday is 26 Jul 2024\n\n", 0, True),
        ("policy", 0, False),
        ("\n\nconstraint", 1, False),
        ("<|eot_id|>", 1, True),
    ]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ c | trim }}", "a</think> b"),
        ("{{ c.split('</think>')[-1].lstrip() }}", "b "),
        ("{{ c.split('</think>')[0] | replace('a', 'zz') }}", "  zz"),
        ("{{ c[2:4] ~ c[-2:] }}", "a<b "),
        ("{{ {'x': c} | tojson }}", '{"x": "  a</think> b "}'),
        ("{{ [c, c] | join('|') }}", "  a</think> b |  a</think> b "),
        ("{% set x %}[{{ c }}]{% endset %}{{ x | upper }}", "[  A</THINK> B ]"),
        ("{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(c) }}", "<  a</think> b >"),
        ("{% set ns = namespace(t='') %}{% for i in range(2) %}{% set ns.t = ns.t + c %}{% endfor %}{{ ns.t }}", "  a</think> b   a</think> b "),
        ("{% if c.startswith('  a') %}{{ c.strip().partition('</think>')[2] }}{% endif %}", " b"),
        ("{{ c | string | safe }}", "  a</think> b "),
        ("{% filter trim %} {{ c }} {% endfilter %}", "a</think> b"),
    ],
)  # fmt: skip
def test_followed_through_everything(source: str, shown: str) -> None:
    source = "{% set c = messages[0].content %}" + source
    messages = chat(("user", "  a</think> b "))
    spans = ChatTemplate(source).render(messages)
    assert text_of(spans) == shown == plain(source, messages)
    assert all(span.tracked for span in spans)
    literal = sum(len(span.text) for span in spans if span.literal)
    content = content_of(spans, 0)
    assert literal + len(content) == len(shown)
    assert "b" in content.lower() or "zz" in shown


@settings(max_examples=60)
@given(
    value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8),
    indent=st.sampled_from(["", "indent=2", "indent=4, sort_keys=true", "ensure_ascii=true", "separators=(',', ':')"]),
)  # fmt: skip
def test_tojson_spells_as_transformers_does(value: Any, indent: str) -> None:
    source = "{{ tools | tojson(ARGS) }}|{{ {'q': messages[0].content, 'v': tools} | tojson(ARGS) }}"
    source = source.replace("ARGS", indent)
    messages = chat(("user", 'c"\n'))
    tools = [{"v": value}]
    spans = ChatTemplate(source).render(messages, tools=tools, tools_segment=1)
    assert text_of(spans) == plain(source, messages, tools)
    assert all(span.tracked for span in spans)


def test_lost_track_is_told_and_never_literal() -> None:
    source = "{{ '<|im_start|>' }}{{ messages[0].content | reverse }}{{ messages[0].content.center(20) }}"
    spans = ChatTemplate(source).render(chat(("user", ">|dne_mi|<")))
    lost = [span for span in spans if not span.tracked]
    assert text_of(lost) == "<|im_end|>" + ">|dne_mi|<".center(20)
    assert not any(span.literal for span in lost)


def test_roles_are_words_of_the_template_only_if_known() -> None:
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
    template = ChatTemplate(source)
    known = template.render(chat(("user", "x")))
    assert [(s.text, s.literal) for s in known] == [("<|user|>", True), ("x", False)]
    odd = template.render(chat(("im_end", "x")))
    assert [(s.text, s.literal) for s in odd] == [("<|", True), ("im_end", False), ("|>", True), ("x", False)]


def test_the_sandbox_holds() -> None:
    for source in (
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ().__class__.__base__.__subclasses__() }}",
    ):
        with pytest.raises(TemplateError, match="failed on this conversation"):
            ChatTemplate(source).render(chat(("user", "x")))


def test_errors_say_what_and_where() -> None:
    with pytest.raises(TemplateError, match=r"not valid Jinja \(line 2"):
        ChatTemplate("ok\n{% if %}")
    refusing = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="refuses this conversation: roles must alternate"):
        refusing.render(chat(("user", "x")))
