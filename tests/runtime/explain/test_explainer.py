"""What holds for every explanation, whatever a client does to its conversation."""

from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.engine.radix_node import common_tokens
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.explain.changes import Side, cause_of
from deeproot.runtime.explain.prompt_map import Origin
from deeproot.runtime.explain.report import Cause

from .conversation import Message, Talk, assistant, system, tool, user

TOOLS = [tool("one"), tool("two"), tool("three")]
WORDS = [
    "Yes. ",
    "At 10:15:00 ",
    "<think>so</think>",
    '{"a": 1, "b": 2}',
    "\n",
    "turn 3 ",
    "<|im_end|>",
    "long " * 20,
]
texts = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)


moves = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "edit", "drop", "rewind", "tools", "system", "insert"]),
        st.integers(0, 9),
        texts,
        texts,
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=60, deadline=None)
@given(
    moves=moves, template=st.sampled_from(["chatml", "qwen3", "llama3"]), memory=st.sampled_from([0, 10**6])
)
def test_the_ceiling_is_what_a_perfect_cache_has_and_all_tokens_are_accounted_for(
    smol: Tokenizer, moves: list[tuple[str, int, str, str]], template: str, memory: int
) -> None:
    talk = Talk(smol, template, memory=memory)
    messages: list[Message] = [system("Be brief.")]
    tools: list[Message] = []
    for kind, at, text, reply in moves:
        where = 1 + at % len(messages)
        if kind == "edit" and where < len(messages):
            messages[where] = {**messages[where], "content": text}
        elif kind == "drop":
            del messages[where : where + 2]
        elif kind == "rewind":
            del messages[where:]
        elif kind == "insert":
            messages.insert(where, user(text))
        elif kind == "tools":
            tools = TOOLS[at % 3 :] + TOOLS[: at % 2]
        elif kind == "system":
            messages[0] = system(text)
        messages.append(user(text))
        before = list(talk.computed)
        found = talk.call(list(messages), tools, reply=reply or "No.")
        prompt = talk.computed[-1][1][: 4 * found.prompt_tokens]
        best = max((common_tokens(past, prompt) for _, past in before), default=0)
        assert found.ceiling_tokens == min(best, found.prompt_tokens - 1)
        if found.divergence is not None:
            assert found.divergence.token == best
            assert (
                found.divergence.before != found.divergence.after or found.cause is Cause.RETOKENISED_OUTPUT
            )
        messages.append(assistant(reply or "No."))


origins = st.none() | st.builds(Origin, st.none() | st.integers(0, 2), st.just("content"))
conversations = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.none() | texts}
    ),
    min_size=3,
    max_size=5,
)
sides = st.builds(
    Side,
    text=st.text(max_size=60) | texts,
    at=st.integers(0, 60),
    cut=st.booleans(),
    origin=origins,
    messages=conversations,
    tools=st.sampled_from([[], TOOLS, TOOLS[::-1]]),
    is_chat=st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(old=sides, new=sides, reply=texts)
def test_any_two_sides_have_a_cause(old: Side, new: Side, reply: str) -> None:
    assert cause_of(old, new, reply) in Cause
