"""The real small model's vocabulary, read from its GGUF, against transformers and against BPE by the book."""

import subprocess
import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers import Regex, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from deeproot.runtime.chat.errors import ModelFilesError
from deeproot.runtime.chat.pretokenizers import PRE_TOKENIZERS
from deeproot.runtime.chat.tokenizer import Tokenizer

from .bpe_reference import byte_level_ids
from .conftest import CORPUS
from .strategies import FRAGMENTS, texts

# What each model's own tokenizer.json says, written for the `regex` module.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REFERENCE: dict[str, tuple[list[str], bool]] = {
    "smollm": ([r"\p{N}", GPT2], False),
    "gpt-2": ([GPT2], False),
    "qwen2": (
        [
            CONTRACTION
            + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        False,
    ),
    "llama-bpe": (
        [
            CONTRACTION
            + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        True,
    ),
    "tekken": (
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ],
        True,
    ),
    "default": (
        [r"[\p{P}$+<=>^~|]+", GPT2.removesuffix(r"|\s+"), r"\p{N}+", r"[0-9]{3}"],
        False,
    ),
}


def test_ids_published_for_this_model(smol: Tokenizer) -> None:
    assert smol.encode("Hello world! 123", parse_special=False).tolist() == [19556, 905, 17, 216, 33, 34, 35]
    assert smol.encode("  multiple   spaces", parse_special=False).tolist() == [216, 2701, 256, 5600]


@pytest.mark.parametrize("text", [CORPUS, *FRAGMENTS, "", "a" * 300, " " * 100, "1234567890" * 5])
def test_equals_transformers(smol: Tokenizer, transformers_smol: Any, text: str) -> None:
    ids = smol.encode(text, parse_special=True)
    assert ids.dtype == np.int32
    assert ids.tolist() == transformers_smol.encode(text, add_special_tokens=False)
    assert smol.decode(ids, skip_special_tokens=False) == transformers_smol.decode(ids.tolist())
    assert smol.decode(ids) == transformers_smol.decode(ids.tolist(), skip_special_tokens=True)


@settings(max_examples=300, deadline=None)
@given(text=texts)
def test_equals_transformers_on_any_text(smol: Tokenizer, transformers_smol: Any, text: str) -> None:
    ids = smol.encode(text, parse_special=True).tolist()
    assert ids == transformers_smol.encode(text, add_special_tokens=False)


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_plain_text_round_trips_and_holds_no_control_token(smol: Tokenizer, text: str) -> None:
    ids = smol.encode(text, parse_special=False).tolist()
    # This vocabulary lacks some bytes (a few control characters and the planes that Unicode leaves empty): they
    # vanish, as they do with transformers.
    known = {piece[0] for piece in smol.pieces if len(piece) == 1}
    assert set(range(256)) - known <= {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, *range(0xF1, 0x100)}
    assert smol.decode(ids) == bytes(b for b in text.encode() if b in known).decode("utf-8", "replace")
    assert not smol.special_ids & set(ids)


@pytest.mark.parametrize("pre", sorted(REFERENCE))
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_each_way_of_cutting_by_the_book(
    by_pre: dict[str, Tokenizer], small_bpe: dict[str, Any], pre: str, text: str
) -> None:
    patterns, ignore_merges = REFERENCE[pre]
    # The two engines know different versions of Unicode: leave out what is assigned in none or in one of them.
    text = "".join(letter for letter in text if unicodedata.category(letter) != "Cn")
    expected = byte_level_ids(text, small_bpe, patterns, ignore_merges)
    assert by_pre[pre].encode(text, parse_special=False).tolist() == expected


@pytest.fixture(scope="module")
def by_pre(small_bpe: dict[str, Any]) -> dict[str, Tokenizer]:
    return {pre: Tokenizer.from_gguf({**small_bpe, "tokenizer.ggml.pre": pre}) for pre in PRE_TOKENIZERS}


def test_ways_of_cutting_differ_where_they_should(by_pre: dict[str, Tokenizer]) -> None:
    """The small vocabulary tells them apart, so the tests above are not vacuous."""
    text = "".join(FRAGMENTS) + CORPUS
    ids = {pre: by_pre[pre].encode(text, parse_special=False).tobytes() for pre in REFERENCE}
    assert len(set(ids.values())) == len(REFERENCE)


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_every_way_of_cutting_loses_nothing(by_pre: dict[str, Tokenizer], text: str) -> None:
    for tokenizer in by_pre.values():
        assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@pytest.mark.parametrize("pre", sorted(GGUF_PRE_TOKENIZER_SPLITS.keys() & PRE_TOKENIZERS.keys()))
def test_cuts_as_transformers_does(by_pre: dict[str, Tokenizer], small_bpe: dict[str, Any], pre: str) -> None:
    """For the names that transformers knows too, by its own table."""
    theirs = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated")
    for text in [CORPUS, "".join(FRAGMENTS), " ".join(FRAGMENTS), "1234567 I'LL Łódź ABCdef/\n//\n\n  x"]:
        text = text.replace("<|im_start|>", "").replace("<|im_end|>", "")
        expected = []
        for piece, _ in theirs.pre_tokenize_str(text):
            expected += byte_level_ids(piece, small_bpe, [], PRE_TOKENIZERS[pre].ignore_merges)
        assert by_pre[pre].encode(text, parse_special=False).tolist() == expected


def test_whole_pieces_are_looked_up_where_merges_are_ignored(by_pre: dict[str, Tokenizer]) -> None:
    zebra = by_pre["llama-bpe"].id_of("zebra")
    assert by_pre["llama-bpe"].encode("zebra", parse_special=False).tolist() == [zebra]
    assert zebra not in by_pre["qwen2"].encode("zebra", parse_special=False).tolist()


def test_missing_pre_means_default(small_bpe: dict[str, Any], by_pre: dict[str, Tokenizer]) -> None:
    text = "1234567 a-b"
    found = Tokenizer.from_gguf(small_bpe).encode(text, parse_special=False).tolist()
    assert found == by_pre["default"].encode(text, parse_special=False).tolist()


def test_control_tokens_only_on_demand_and_user_defined_always(by_pre: dict[str, Tokenizer]) -> None:
    tokenizer = by_pre["smollm"]
    start, think = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<think>")
    assert tokenizer.special_ids == {start, tokenizer.id_of("<|im_end|>")}
    ids = tokenizer.encode("<|im_start|><think>", parse_special=True).tolist()
    assert ids == [start, think]
    plain = tokenizer.encode("<|im_start|><think>", parse_special=False).tolist()
    assert start not in plain
    assert plain[-1] == think
    assert tokenizer.decode(ids) == "<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|><think>"


def test_roles_and_beginning(
    smol: Tokenizer, by_pre: dict[str, Tokenizer], small_bpe: dict[str, Any]
) -> None:
    assert (smol.bos_id, smol.eos_id, smol.vocab_size, smol.add_bos) == (1, 2, 49152, False)
    assert smol.special_texts == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert smol.encode_prompt("a").tolist() == smol.encode("a", parse_special=True).tolist()
    llama = by_pre["llama-bpe"]
    assert llama.add_bos
    assert llama.encode_prompt("a")[0] == llama.bos_id
    assert llama.encode_prompt("<|im_start|>a").tolist().count(llama.bos_id) == 1
    silent = Tokenizer.from_gguf(
        {**small_bpe, "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}
    )
    assert not silent.add_bos


def test_lone_surrogates_become_replacement_characters(smol: Tokenizer) -> None:
    assert smol.decode(smol.encode("a\ud800b\ud83d\ude00", parse_special=False)) == "a\ufffdb😀"


def test_ids_without_a_token_decode_to_nothing(smol: Tokenizer) -> None:
    hello = smol.encode("hello", parse_special=False).tolist()
    assert smol.decode([*hello, 49152, 10**6, -1]) == "hello"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.pre": "martian"}, ["tokenizer.ggml.pre", "'martian'", "smollm"]),
        ({"tokenizer.ggml.model": "bert"}, ["tokenizer.ggml.model", "'bert'"]),
        ({"tokenizer.ggml.model": None}, ["tokenizer.ggml.model", "None"]),
        ({"tokenizer.ggml.tokens": None}, ["tokenizer.ggml.tokens", "nothing"]),
        ({"tokenizer.ggml.tokens": [1, 2]}, ["tokenizer.ggml.tokens"]),
        ({"tokenizer.ggml.merges": ["x y z w", "ab"]}, ["tokenizer.ggml.merges"]),
        ({"tokenizer.ggml.merges": ["no-such token"]}, ["tokenizer.ggml.merges", "damaged"]),
        ({"tokenizer.ggml.token_type": [1, 1]}, ["tokenizer.ggml.token_type", "2 entries"]),
        ({"tokenizer.ggml.eos_token_id": 10**6}, ["tokenizer.ggml.eos_token_id", "1000000"]),
    ],
)
def test_bad_metadata_is_named(small_bpe: dict[str, Any], change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelFilesError) as caught:
        Tokenizer.from_gguf({**small_bpe, **change})
    for word in words:
        assert word in str(caught.value)


def test_neither_torch_nor_transformers_is_imported() -> None:
    modules = ["tokenizer", "assets", "template", "call_parser", "detokenizer", "stops"]
    code = "import sys\n" + "".join(f"import deeproot.runtime.chat.{m}\n" for m in modules)
    code += "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
