"""SentencePiece vocabularies in GGUF, against the sentencepiece library that the models were made with."""

from typing import Any

import pytest
from hypothesis import given, settings
from transformers import LlamaTokenizer
from transformers.tokenization_utils_base import generate_merges

from deeproot.runtime.chat.errors import ModelFilesError
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conftest import Spm, train_spm
from .strategies import texts


def theirs(spm_model: Spm, text: str) -> list[int]:
    return list(spm_model.processor.encode(text))


@pytest.mark.parametrize(
    "text", ["the quick brown fox", "  two  spaces ", "a\nb", "foo(bar)", "東京", "</s>", "", " "]
)
def test_equals_sentencepiece(spm: Tokenizer, spm_model: Spm, text: str) -> None:
    assert spm.encode(text, parse_special=False).tolist() == theirs(spm_model, text)


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_equals_sentencepiece_on_any_text(spm: Tokenizer, spm_model: Spm, text: str) -> None:
    text = text.replace("▁", " ").replace("\x00", "")
    assert spm.encode(text, parse_special=False).tolist() == theirs(spm_model, text)


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_round_trips(spm: Tokenizer, text: str) -> None:
    """U+2581 is this vocabulary's way to write a space, so it comes back as one."""
    ids = spm.encode(text, parse_special=False).tolist()
    assert spm.decode(ids) == text.replace("▁", " ")
    assert not spm.special_ids & set(ids)


def test_without_space_prefix() -> None:
    """Gemma's way: text is taken as it is."""
    model = train_spm(space_prefix=False)
    tokenizer = Tokenizer.from_gguf(model.metadata)
    for text in ["the quick", " the  quick brown", "foo(bar)\n"]:
        ids = tokenizer.encode(text, parse_special=False).tolist()
        assert ids == theirs(model, text)
        assert tokenizer.decode(ids) == text


def test_control_tokens_and_beginning(spm: Tokenizer, spm_model: Spm) -> None:
    start, end = spm.id_of("[INST]"), spm.id_of("[/INST]")
    assert spm.special_ids == {spm.id_of("<unk>"), spm.id_of("<s>"), spm.id_of("</s>"), start, end}
    assert (spm.bos_id, spm.eos_id, spm.add_bos) == (1, 2, True)
    ids = spm.encode("[INST]the[/INST]", parse_special=True).tolist()
    # Each stretch of text between control tokens starts with a space of its own.
    assert ids == [start, *theirs(spm_model, "the"), end]
    assert spm.encode_prompt("the").tolist() == [1, *theirs(spm_model, "the")]
    assert not {start, end} & set(spm.encode("[INST]the[/INST]", parse_special=False).tolist())


def test_user_defined_tokens_are_found_in_plain_text(spm: Tokenizer, spm_model: Spm) -> None:
    assert spm.id_of("<sep>") in spm.encode("the<sep>fox", parse_special=False).tolist()


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_equals_transformers(spm: Tokenizer, spm_model: Spm, theirs_hf: LlamaTokenizer, text: str) -> None:
    """Where both follow the same rule: text without control tokens that does not start with a space."""
    text = "a" + text.replace("</s>", "")
    assert spm.encode(text, parse_special=False).tolist() == theirs_hf.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def theirs_hf(spm_model: Spm) -> LlamaTokenizer:
    """transformers' Llama tokenizer over the same pieces, with merges of its own derivation."""
    tokens = spm_model.metadata["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, spm_model.metadata["tokenizer.ggml.scores"], strict=True))
    vocab = {token: i for i, token in enumerate(tokens)}
    return LlamaTokenizer(vocab=vocab, merges=generate_merges(vocab, scores))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.scores": [0.5]}, ["tokenizer.ggml.scores", "1 entries"]),
        ({"tokenizer.ggml.scores": None}, ["tokenizer.ggml.scores", "nothing"]),
        ({"tokenizer.ggml.unknown_token_id": -3}, ["tokenizer.ggml.unknown_token_id", "-3"]),
    ],
)
def test_bad_metadata_is_named(spm_model: Spm, change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelFilesError) as caught:
        Tokenizer.from_gguf({**spm_model.metadata, **change})
    for word in words:
        assert word in str(caught.value)
