"""transformers as a peer: what comes out is what its own `generate` gives, alone and in a batch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from deeproot.bench.transformers_server import Engine, Request

from ..engine.hf import tiny_llama
from ..runtime.tiny_model import write_tiny_model

PROMPTS = ["one", "a longer prompt", "of three"]
LENGTHS = [3, 7, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    tiny_llama(folder, vocab_size=258)
    return folder


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def expected(folder: Path, texts: Sequence[str], num_tokens: int) -> tuple[list[list[str]], list[int]]:
    """The text of each token that `generate` gives for them as one batch, and the prompts' lengths."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    chats = [messages(text) for text in texts]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
    )
    model.generation_config.eos_token_id = None
    rows = model.generate(**prompts, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    new = rows[:, prompts["input_ids"].shape[1] :].tolist()
    return [[tokenizer.decode([t]) for t in row] for row in new], prompts["attention_mask"].sum(1).tolist()


def test_a_batch_of_several_lengths(folder: Path) -> None:
    rows, lengths = expected(folder, PROMPTS, max(LENGTHS))
    engine = Engine(str(folder), gather_s=2.0)
    answers = [
        engine.answer(messages(text), length, ignore_eos=True)
        for text, length in zip(PROMPTS, LENGTHS, strict=True)
    ]
    assert [list(answer.pieces()) for answer in answers] == [
        row[:length] for row, length in zip(rows, LENGTHS, strict=True)
    ]
    assert [answer.prompt_tokens for answer in answers] == lengths


def test_an_end_token_ends_an_answer_unless_it_is_ignored(folder: Path) -> None:
    [row], _ = expected(folder, PROMPTS[:1], 8)
    [end] = transformers.AutoTokenizer.from_pretrained(folder).encode(row[3], add_special_tokens=False)[:1]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    engine = Engine(str(folder), gather_s=0.0)
    ended, went_on = (engine.answer(messages(PROMPTS[0]), 8, ignore_eos=ignored) for ignored in (False, True))
    assert list(ended.pieces()) == row[: row.index(row[3])]
    assert list(went_on.pieces()) == row


def test_what_fails_fails_alone(folder: Path) -> None:
    engine = Engine(str(folder), gather_s=0.0)
    wrong = engine.answer([{"role": "user"}], 2, ignore_eos=True)
    with pytest.raises(RuntimeError, match="content"):
        list(wrong.pieces())
    right: Request = engine.answer(messages("x"), 2, ignore_eos=True)
    assert len(list(right.pieces())) == 2
