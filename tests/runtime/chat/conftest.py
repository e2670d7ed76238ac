"""Tokenizers small and real, shared by the chat tests."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from deeproot.engine.gguf import GGUFFile
from deeproot.runtime.chat.tokenizer import Tokenizer

from .strategies import FRAGMENTS

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and then it doesn't: foo(bar), x = 12 + 34; return None\n\n"
    'def main(args):\n    for i in range(10):\n        print("value", i)\n\n'
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}\n'
    "naïve café — déjà vu; 東京は日本の首都です。 Привет, мир! 😀 👩‍👩‍👧 \u0301 ½ ٣\r\n\t\tend."
)


@pytest.fixture(scope="session")
def smol_metadata(smollm2_path: Path) -> dict[str, Any]:
    with GGUFFile(smollm2_path) as file:
        return dict(file.metadata)


@pytest.fixture(scope="session")
def smol(smol_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smol_metadata)


@pytest.fixture(scope="session")
def transformers_smol(smollm2_path: Path) -> Any:
    """The same vocabulary as transformers reads it; loading takes it seconds."""
    theirs = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    # It does not know `smollm`: the model's own tokenizer.json cuts digits one by one, then as GPT-2 does.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return theirs


@pytest.fixture(scope="session")
def small_bpe() -> dict[str, Any]:
    """GGUF metadata of a small byte-level vocabulary, without `pre`, whose merges know no boundaries: digits,
    spaces, letters and line ends all merge, so that the way of cutting decides."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    known = [fragment for fragment in FRAGMENTS if fragment != "zebra"]
    backend.train_from_iterator([*CORPUS.split(";"), *known, *"".join(known).split("3")] * 2, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens.append("zebra")  # no merges lead to it: only vocabularies that look whole pieces up can use it
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, "<|im_start|>", "<|im_end|>", "<think>"],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3, 3, 4],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }


@dataclass(frozen=True)
class Spm:
    """A SentencePiece model and what its GGUF would say."""

    processor: sentencepiece.SentencePieceProcessor
    metadata: dict[str, Any] = field(repr=False)


def train_spm(*, space_prefix: bool) -> Spm:
    """A small BPE model with byte fallback, made as Llama's is, with two control tokens at its end."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS.splitlines(), *" ".join(FRAGMENTS).splitlines()] * 3),
        model_writer=written,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=space_prefix,
        control_symbols=["[INST]", "[/INST]"],
        user_defined_symbols=["<sep>"],
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = range(processor.get_piece_size())

    def kind(i: int) -> int:
        if processor.is_unknown(i):
            return 2
        if processor.is_control(i):
            return 3
        return 6 if processor.is_byte(i) else 4 if processor.id_to_piece(i) == "<sep>" else 1

    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [kind(i) for i in ids],
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }
    return Spm(processor, metadata)


@pytest.fixture(scope="session")
def spm_model() -> Spm:
    return train_spm(space_prefix=True)


@pytest.fixture(scope="session")
def spm(spm_model: Spm) -> Tokenizer:
    return Tokenizer.from_gguf(spm_model.metadata)


def write_byte_level_folder(
    folder: Path, special: Sequence[str | AddedToken], plain_added: Sequence[str] = (), **config: Any
) -> Path:
    """A folder with a small byte-level tokenizer.json that has the given added tokens, and `tokenizer_config.json`."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([CORPUS], trainer)
    backend.add_special_tokens(
        [t if isinstance(t, AddedToken) else AddedToken(t, special=True, normalized=False) for t in special]
    )
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain_added])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
