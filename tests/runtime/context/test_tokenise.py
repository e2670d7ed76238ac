"""Joints: verified, forced or reported; control tokens from the template's words alone; equal to the whole text."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from deeproot.runtime.context.control_text import TextEncoder
from deeproot.runtime.context.spans import ChatMessage, Part, Span
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SEPARATORS, SegmentTokenizer
from deeproot.runtime.context.tokenizer import NamedToken, TokenizerError, TokenizersAdapter

from .template_names import RUNNING_ON, TEMPLATES

HARD = [("foo(", ")"), ("a\n", "\n"), ("12", "34")]
snippets = st.text("foo()\n 1234ab", max_size=12)


def spans(*parts: tuple[str, int]) -> list[Span]:
    return [Span(text, segment, False) for text, segment in parts]


@pytest.mark.parametrize(("left", "right"), HARD)
def test_naive_joining_fails_where_tokens_merge(tok: TokenizersAdapter, left: str, right: str) -> None:
    naive = [*tok.encode(left, parse_special=False), *tok.encode(right, parse_special=False)]
    assert naive != list(tok.encode(left + right, parse_special=False))
    segments = SegmentTokenizer(tok)
    assert not segments.joint_holds(left, right)
    joined = segments.join(spans((left, 0), (right, 1)))
    assert list(joined.token_ids) == naive
    assert [(j.left, j.right) for j in joined.unverified] == [(left, right)]
    assert joined.verified == 0


@pytest.mark.parametrize(("left", "right"), HARD)
def test_a_forced_separator_makes_the_joint_hold(tok: TokenizersAdapter, left: str, right: str) -> None:
    segments = SegmentTokenizer(tok)
    separator = segments.separator(left, right)
    assert separator in SEPARATORS
    joined = segments.join(spans((left, 0), (separator + right, 1)))
    assert not joined.unverified
    assert joined.verified == 1
    assert list(joined.token_ids) == list(tok.encode(left + separator + right, parse_special=False))


@settings(max_examples=200, deadline=None)
@given(left=snippets, right=snippets)
def test_separators_hold_or_the_joint_is_reported(tok: TokenizersAdapter, left: str, right: str) -> None:
    segments = SegmentTokenizer(tok)
    text = segments.separator(left, right) + right
    joined = segments.join(spans((left, 0), (text, 1)))
    whole = tok.encode(left + text, parse_special=False)
    assert bool(joined.unverified) == (not np.array_equal(joined.token_ids, whole))


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(snippets, min_size=1, max_size=5))
def test_joined_ids_are_those_of_the_whole_or_it_says_so(tok: TokenizersAdapter, pieces: list[str]) -> None:
    segments = SegmentTokenizer(tok)
    joined = segments.join(spans(*((text, i) for i, text in enumerate(pieces))))
    assert joined.token_ids.dtype == np.int32
    if not joined.unverified:
        assert list(joined.token_ids) == list(tok.encode("".join(pieces), parse_special=False))
    # Whatever the neighbours, a segment's ids are those of its own text.
    for boundary in joined.boundaries:
        assert boundary.segment is not None
        own = tok.encode(pieces[boundary.segment], parse_special=False)
        assert list(joined.token_ids[boundary.start : boundary.end]) == list(own)
    assert [b.start for b in joined.boundaries[1:]] == [b.end for b in joined.boundaries[:-1]]


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<s>", "</s>", "[INST]", "<tool_call>", "<think>", " ", "\n", "x", "é"]),
        max_size=8,
    ).map("".join),
    by_model=st.booleans(),
)  # fmt: skip
def test_no_text_yields_a_control_token(
    tok: TokenizersAdapter, bpe: tokenizers.Tokenizer, text: str, by_model: bool
) -> None:
    ids = SegmentTokenizer(tok).encode(text, model_written=by_model)
    special = {token.token_id for token in tok.added if token.special or not by_model} - {
        bpe.token_to_id("    ")
    }
    assert not special & set(ids.tolist())
    assert bpe.decode(ids.tolist(), skip_special_tokens=False) == text


def test_shorthands_of_the_model_come_back_as_its_ids(
    tok: TokenizersAdapter, bpe: tokenizers.Tokenizer
) -> None:
    segments = SegmentTokenizer(tok)
    think = bpe.token_to_id("<think>")
    assert segments.encode("<think>", model_written=True).tolist() == [think]
    assert think not in segments.encode("<think>").tolist()
    # A run of spaces is text for everybody.
    assert bpe.token_to_id("    ") in segments.encode("a    b").tolist()


def test_only_literals_become_control_tokens(tok: TokenizersAdapter, bpe: tokenizers.Tokenizer) -> None:
    made = SegmentTokenizer(tok).join(
        [Span("<|im_start|>user\n", 0, True), Span("hi<|im_end|>", 0, False), Span("<|im_end|>\n", 0, True)]
    )
    start, end = bpe.token_to_id("<|im_start|>"), bpe.token_to_id("<|im_end|>")
    ids = made.token_ids.tolist()
    assert (ids[0], ids.count(start), ids.count(end)) == (start, 1, 1)
    assert bpe.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|><|im_end|>\n"


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text("foo()\n 1234ab", max_size=20), min_size=3, max_size=6))
def test_equal_to_the_templates_own_rendering(
    name: str, texts: list[str], tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]
) -> None:
    template = make_template(name)
    roles = itertools.chain(["system"], itertools.cycle(["user", "assistant"]))
    messages = [
        ChatMessage(role, (Part(text, i),), {})
        for i, (role, text) in enumerate(zip(roles, texts, strict=False))
    ]
    rendered = template.render(messages)
    joined = SegmentTokenizer(tok).join(rendered)
    whole = tok.encode("".join(span.text for span in rendered), parse_special=True)
    assert not joined.unclean
    if name not in RUNNING_ON:
        # Between messages stands a control token, so nothing can merge.
        assert not joined.unverified
    if not joined.unverified:
        assert joined.token_ids.tolist() == whole.tolist()
    else:
        assert joined.token_ids.tolist() != whole.tolist()


def test_equal_on_the_real_model(smollm2: tuple[tokenizers.Tokenizer, str]) -> None:
    tokenizer, source = smollm2
    adapter = TokenizersAdapter(tokenizer)
    messages = [
        ChatMessage(role, (Part(text, i),), {})
        for i, (role, text) in enumerate(
            [
                ("system", "You are."),
                ("user", "foo(\n\n12"),
                ("assistant", ")\n"),
                ("user", "  34 naïve 漢字 🙂\n\n"),
            ]
        )
    ]
    rendered = ChatTemplate(source).render(messages)
    joined = SegmentTokenizer(adapter).join(rendered)
    text = "".join(span.text for span in rendered)
    assert joined.token_ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert not joined.unverified


@pytest.mark.parametrize(("lstrip", "rstrip"), list(itertools.product([False, True], repeat=2)))
def test_control_tokens_that_swallow_white_space(
    bpe: tokenizers.Tokenizer, lstrip: bool, rstrip: bool
) -> None:
    made = tokenizers.Tokenizer.from_str(bpe.to_str())
    made.add_special_tokens(
        [AddedToken("<|stop|>", lstrip=lstrip, rstrip=rstrip, normalized=False, special=True)]
    )
    segments = SegmentTokenizer(TokenizersAdapter(made))
    assert segments.side_effects("<|stop|>") == (lstrip, rstrip)
    pieces = [
        Span("foo( \n", 0, False),
        Span(" <|stop|>\n", 0, True),
        Span("  \n", 1, False),
        Span(" x", 2, False),
    ]
    joined = segments.join(pieces)
    whole = made.encode("".join(span.text for span in pieces), add_special_tokens=False).ids
    assert bool(joined.unverified) == (joined.token_ids.tolist() != whole)
    simple = segments.join([Span("foo \n", 0, False), Span("<|stop|>", 0, True), Span(" \n x", 1, False)])
    assert simple.token_ids.tolist() == made.encode("foo \n<|stop|> \n x", add_special_tokens=False).ids


def test_a_tokenizer_that_changes_text_beside_controls_is_reported() -> None:
    vocabulary = {"<unk>": 0, "▁a": 1, "a": 2, "▁b": 3, "b": 4, "▁": 5, "\n": 6, "<|x|>": 7, " ": 8}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.add_special_tokens([AddedToken("<|x|>", normalized=False, special=True)])
    joined = SegmentTokenizer(TokenizersAdapter(made)).join([Span("<|x|>", 0, True), Span("b", 0, False)])
    assert joined.unclean == ("<|x|>",)


def test_the_cache_forgets_but_the_ids_stay_right(tok: TokenizersAdapter) -> None:
    small = SegmentTokenizer(tok, cache_tokens=10)
    texts = [f"text {i} " * 3 for i in range(20)]
    for text in texts * 2:
        assert small.encode(text).tolist() == tok.encode(text, parse_special=False).tolist()
    ids = small.encode("abc")
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_one_digest_for_one_text_only(tok: TokenizersAdapter) -> None:
    calls: list[str] = []

    class Counting:
        added = tok.added

        def encode(self, text: str, *, parse_special: bool) -> np.ndarray:
            calls.append(text)
            return tok.encode(text, parse_special=parse_special)

    segments = SegmentTokenizer(Counting())
    for _ in range(3):
        segments.encode("the same text")
    assert calls.count("the same text") == 1


def test_lone_surrogates_do_no_harm(tok: TokenizersAdapter, bpe: tokenizers.Tokenizer) -> None:
    ids = SegmentTokenizer(tok).encode("a\ud800b")
    assert bpe.decode(ids.tolist()) == "a\ufffdb"


def test_a_tokenizer_that_cannot_be_used_is_refused() -> None:
    class Stubborn:
        added = (NamedToken("<x>", 1, True),)

        def encode(self, text: str, *, parse_special: bool) -> np.ndarray:
            return np.array([1] * len(text), dtype=np.int32)

    with pytest.raises(TokenizerError, match="makes a control token of a single character"):
        TextEncoder(Stubborn(), Stubborn.added)("ab")
