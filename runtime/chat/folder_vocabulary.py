"""The vocabulary in a Hugging Face folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from deeproot.engine.text_files import read_text
from deeproot.runtime.chat.errors import ModelFilesError
from deeproot.runtime.chat.vocabulary import (
    Added,
    Vocabulary,
    byte_level_pieces,
    sentencepiece_pieces,
)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an empty one if there is no such file; ModelFilesError if it is not an object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as fault:
        raise ModelFilesError(f"{path}: not valid JSON ({fault}); fetch the file again") from fault
    if not isinstance(value, dict):
        raise ModelFilesError(
            f"{path}: expected a JSON object, found {type(value).__name__}; fetch the file again"
        )
    return value


def folder_vocabulary(folder: Path) -> Vocabulary:
    """Read `tokenizer.json`, and the roles of its tokens from `tokenizer_config.json`.

    ModelFilesError if `tokenizer.json` is missing, damaged, or decodes in a way that is not supported.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFilesError(
            f"{path}: not found, and no other tokenizer file can be read; make one with "
            "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder), or use a GGUF of the model"
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as fault:  # the library raises bare Exception
        raise ModelFilesError(f"{path}: {fault}; fetch the file again") from fault
    backend.no_truncation()
    backend.no_padding()
    added = tuple(Added(i, token) for i, token in sorted(backend.get_added_tokens_decoder().items()))
    config = read_json(folder / "tokenizer_config.json")
    bos_id = _token_id(backend, config, "bos_token", folder)
    pieces, drop_leading_space = _pieces(backend, added, path)
    return Vocabulary(
        backend=backend,
        pieces=pieces,
        added=added,
        bos_id=bos_id,
        eos_id=_token_id(backend, config, "eos_token", folder),
        unk_id=_token_id(backend, config, "unk_token", folder),
        pad_id=_token_id(backend, config, "pad_token", folder),
        add_bos=_adds_bos(backend, config, bos_id),
        drop_leading_space=drop_leading_space,
    )


def _pieces(backend: Backend, added: tuple[Added, ...], path: Path) -> tuple[tuple[bytes, ...], bool]:
    """The bytes of each id, and whether decoding drops a leading space, from how `tokenizer.json` decodes."""
    tokens: list[str | None] = [None] * (max(backend.get_vocab(with_added_tokens=True).values()) + 1)
    for token, token_id in backend.get_vocab(with_added_tokens=True).items():
        tokens[token_id] = token
    decoder = json.loads(backend.to_str()).get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return byte_level_pieces(tokens, frozenset(entry.token_id for entry in added)), False
    if kinds & {"ByteFallback", "Metaspace"}:
        return sentencepiece_pieces(tokens), any(map(_drops_leading_space, steps))
    raise ModelFilesError(
        f"{path}: decoder {decoder.get('type')!r} is not supported; supported are byte-level and SentencePiece "
        "vocabularies"
    )


def _drops_leading_space(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return step.get("type") == "Strip" and step.get("content") == " " and bool(step.get("start"))


def _token_id(backend: Backend, config: Mapping[str, Any], key: str, folder: Path) -> int | None:
    value = config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if text is None:
        return None
    token_id = backend.token_to_id(str(text))
    if token_id is None:
        raise ModelFilesError(
            f"{folder / 'tokenizer_config.json'}: {key} {text!r} is not in tokenizer.json; the files do not belong "
            "together, fetch them again"
        )
    return int(token_id)


def _adds_bos(backend: Backend, config: Mapping[str, Any], bos_id: int | None) -> bool:
    if bos_id is None:
        return False
    # The post-processor is what really adds it; the setting only speaks where there is no such step.
    first = backend.encode("", add_special_tokens=True).ids[:1]
    return first == [bos_id] or (backend.post_processor is None and config.get("add_bos_token") is True)
