"""Vocabularies of Hugging Face folders, against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from deeproot.runtime.chat.detokenizer import Detokenizer
from deeproot.runtime.chat.errors import ModelFilesError
from deeproot.runtime.chat.gguf_vocabulary import merges_from_scores
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conftest import CORPUS, Spm, write_byte_level_folder
from .strategies import texts


def write_spm_folder(folder: Path, model: Spm, *, metaspace: bool) -> Path:
    """Llama's tokenizer.json in its two forms: a normaliser that puts the space (old) or Metaspace (new)."""
    meta = model.metadata
    tokens = meta["tokenizer.ggml.tokens"]
    merges = merges_from_scores(tokens, meta["tokenizer.ggml.token_type"], meta["tokenizer.ggml.scores"])
    bpe = models.BPE(
        vocab={t: i for i, t in enumerate(tokens)},
        merges=merges,
        byte_fallback=True,
        fuse_unk=True,
        unk_token="<unk>",
    )
    backend = tokenizers.Tokenizer(bpe)
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"__type": "AddedToken", "content": "<s>"},
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, spm_model: Spm) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("folders")
    return {
        "byte-level": write_byte_level_folder(
            root / "a",
            ["<s>", "</s>", "<|im_end|>"],
            ["<think>", "\n\n\n"],
            bos_token="<s>",
            eos_token="</s>",
        ),
        "normaliser": write_spm_folder(root / "b", spm_model, metaspace=False),
        "metaspace": write_spm_folder(root / "c", spm_model, metaspace=True),
    }


KINDS = ["byte-level", "normaliser", "metaspace"]


@pytest.fixture(scope="module")
def ours(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.from_folder(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def theirs(folders: dict[str, Path]) -> dict[str, Any]:
    return {kind: AutoTokenizer.from_pretrained(str(folder)) for kind, folder in folders.items()}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_equals_transformers(
    ours: dict[str, Tokenizer], theirs: dict[str, Any], kind: str, text: str
) -> None:
    ids = ours[kind].encode(text, parse_special=True).tolist()
    assert ids == theirs[kind].encode(text, add_special_tokens=False)
    assert ours[kind].encode_prompt(text).tolist() == theirs[kind].encode(text)
    decoded = theirs[kind].decode(ids, skip_special_tokens=True)
    assert ours[kind].decode(ids) == decoded
    stream = Detokenizer(ours[kind])
    assert "".join(map(stream.feed, ids)) + stream.finish() == decoded


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_plain_text_holds_no_control_token(ours: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = ours[kind]
    text = "a" + text if kind == "metaspace" else text  # it takes a space at the start for its own
    ids = tokenizer.encode(text, parse_special=False).tolist()
    assert not tokenizer.special_ids & set(ids)
    expected = text if kind == "byte-level" else text.replace("▁", " ")
    assert tokenizer.decode(ids) == expected


def test_roles_of_tokens(ours: dict[str, Tokenizer]) -> None:
    byte_level, old, new = (ours[kind] for kind in KINDS)
    assert not byte_level.add_bos
    assert old.add_bos
    assert new.add_bos
    assert old.special_texts == {"bos_token": "<s>", "eos_token": "</s>"}
    assert byte_level.special_ids == {byte_level.id_of(t) for t in ("<s>", "</s>", "<|im_end|>")}
    assert byte_level.vocab_size == byte_level.id_of("\n\n\n") + 1


def test_added_tokens_that_are_not_special_are_found_in_plain_text(ours: dict[str, Tokenizer]) -> None:
    tokenizer = ours["byte-level"]
    ids = tokenizer.encode("a<think>\n\n\n<|im_end|>", parse_special=False).tolist()
    assert {tokenizer.id_of("<think>"), tokenizer.id_of("\n\n\n")} <= set(ids)
    assert tokenizer.id_of("<|im_end|>") not in ids


def test_spaces_between_control_tokens_in_each_form(
    ours: dict[str, Tokenizer], theirs: dict[str, Any]
) -> None:
    """The old form puts a space at the start of every stretch of text, the new one at the start of all."""
    text = "[INST]the[/INST] fox"
    for kind in KINDS[1:]:
        assert ours[kind].encode(text, parse_special=True).tolist() == theirs[kind].encode(
            text, add_special_tokens=False
        )
    assert (
        ours["normaliser"].encode(text, parse_special=True).size
        > ours["metaspace"].encode(text, parse_special=True).size
    )


def test_missing_tokenizer_json_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json: not found.*save_pretrained"):
        Tokenizer.from_folder(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write_byte_level_folder(tmp_path / "m", ["<s>"])
    for name, content, words in [
        ("tokenizer_config.json", "{", "tokenizer_config.json: not valid JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: expected a JSON object"),
        ("tokenizer_config.json", '{"eos_token": "<nope>"}', "eos_token '<nope>' is not in tokenizer.json"),
        ("tokenizer.json", "{}", "tokenizer.json: .*fetch the file again"),
    ]:
        before = (folder / name).read_text()
        (folder / name).write_text(content)
        with pytest.raises(ModelFilesError, match=words):
            Tokenizer.from_folder(folder)
        (folder / name).write_text(before)
    assert Tokenizer.from_folder(folder).id_of("<s>") is not None


def test_other_kinds_of_decoder_are_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFilesError, match="decoder 'WordPiece' is not supported"):
        Tokenizer.from_folder(tmp_path)


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    folder = write_byte_level_folder(tmp_path / "m", ["<s>"])
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode(CORPUS, parse_special=True)) == CORPUS
