"""The vocabulary in a GGUF file's metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from deeproot.runtime.chat.errors import ModelFilesError
from deeproot.runtime.chat.pretokenizers import pre_tokenizer
from deeproot.runtime.chat.vocabulary import (
    WORD_START,
    Added,
    Vocabulary,
    byte_level_pieces,
    sentencepiece_pieces,
)

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_LITERAL_TYPES = (_UNKNOWN, _CONTROL, _USER_DEFINED)


def gguf_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read the vocabulary from `metadata`, GGUF's keys and Python values.

    ModelFilesError if a part is missing or malformed, or if the kind of tokenizer is not supported.
    """
    kind = metadata.get(_PREFIX + "model")
    if kind == "gpt2":
        return _byte_level(metadata)
    if kind == "llama":
        return _sentencepiece(metadata)
    raise ModelFilesError(
        f"tokenizer.ggml.model: {kind!r} is not supported; supported are 'gpt2' (byte-level BPE) and 'llama' "
        "(SentencePiece BPE). The model's Hugging Face folder, if it has a tokenizer.json, can be used instead"
    )


def _byte_level(metadata: Mapping[str, Any]) -> Vocabulary:
    tokens = _list(metadata, "tokens", str)
    types = _types(metadata, len(tokens))
    rules = pre_tokenizer(str(metadata.get(_PREFIX + "pre") or "default"))
    merges = [_pair(merge) for merge in _list(metadata, "merges", str)]
    backend = Backend(_bpe(tokens, merges, ignore_merges=rules.ignore_merges))
    steps: list[Any] = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in rules.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    added = _added(tokens, types)
    backend.add_tokens([entry.token for entry in added])
    literal_ids = frozenset(i for i, kind in enumerate(types) if kind in _LITERAL_TYPES)
    return Vocabulary(
        backend=backend,
        pieces=byte_level_pieces(tokens, literal_ids),
        added=added,
        bos_id=_token_id(metadata, "bos", len(tokens)),
        eos_id=_token_id(metadata, "eos", len(tokens)),
        unk_id=_token_id(metadata, "unknown", len(tokens)),
        pad_id=_token_id(metadata, "padding", len(tokens)),
        add_bos=bool(metadata.get(_PREFIX + "add_bos_token", rules.add_bos)),
        drop_leading_space=False,
    )


def _sentencepiece(metadata: Mapping[str, Any]) -> Vocabulary:
    tokens = _list(metadata, "tokens", str)
    types = _types(metadata, len(tokens))
    unk_id = _token_id(metadata, "unknown", len(tokens), default=0)
    space_prefix = bool(metadata.get(_PREFIX + "add_space_prefix", True))
    if _PREFIX + "merges" in metadata:
        merges = [_pair(merge) for merge in _list(metadata, "merges", str)]
    else:
        merges = merges_from_scores(tokens, types, _list(metadata, "scores", float))
    unk = None if unk_id is None else tokens[unk_id]
    backend = Backend(_bpe(tokens, merges, byte_fallback=True, fuse_unk=True, unk_token=unk))
    # Each stretch of text between control tokens gets its own leading space, as the models were trained.
    spaces = normalizers.Replace(" ", WORD_START)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(WORD_START), spaces]) if space_prefix else spaces
    )
    added = _added(tokens, types)
    backend.add_tokens([entry.token for entry in added])
    return Vocabulary(
        backend=backend,
        pieces=sentencepiece_pieces(tokens),
        added=added,
        bos_id=_token_id(metadata, "bos", len(tokens), default=1),
        eos_id=_token_id(metadata, "eos", len(tokens), default=2),
        unk_id=unk_id,
        pad_id=_token_id(metadata, "padding", len(tokens)),
        add_bos=bool(metadata.get(_PREFIX + "add_bos_token", True)),
        drop_leading_space=space_prefix,
    )


def merges_from_scores(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """The merges that a SentencePiece BPE vocabulary implies, best first.

    SentencePiece joins the neighbours whose union scores highest, so each way of cutting a token in two known
    tokens is a merge, ranked by the score of the whole.
    """
    if len(scores) != len(tokens):
        raise ModelFilesError(
            f"tokenizer.ggml.scores: {len(scores)} entries for {len(tokens)} tokens; the file is damaged"
        )
    known = {token for token, kind in zip(tokens, types, strict=True) if kind == _NORMAL}
    ranked = sorted(
        (i for i, kind in enumerate(types) if kind == _NORMAL and len(tokens[i]) > 1),
        key=lambda i: -scores[i],
    )
    merges = []
    for i in ranked:
        token = tokens[i]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                merges.append((left, right))
    return merges


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as fault:  # the library raises bare Exception
        raise ModelFilesError(f"tokenizer.ggml.merges: {fault}; the file is damaged") from fault


def _added(tokens: Sequence[str], types: Sequence[int]) -> tuple[Added, ...]:
    return tuple(
        Added(i, AddedToken(tokens[i], special=kind != _USER_DEFINED, normalized=False))
        for i, kind in enumerate(types)
        if kind in _LITERAL_TYPES and tokens[i]
    )


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelFilesError(
            f"tokenizer.ggml.merges: {merge!r} is not two tokens with a space between; the file is damaged"
        )
    return left, right


def _list(metadata: Mapping[str, Any], key: str, kind: type[Any]) -> list[Any]:
    value = metadata.get(_PREFIX + key)
    if not isinstance(value, list) or not value or not isinstance(value[0], kind):
        raise ModelFilesError(
            f"{_PREFIX}{key}: expected a list of {kind.__name__}, found "
            f"{'nothing' if value is None else type(value).__name__}; convert the model again with its tokenizer"
        )
    return value


def _types(metadata: Mapping[str, Any], num_tokens: int) -> list[int]:
    if _PREFIX + "token_type" not in metadata:
        return [_NORMAL] * num_tokens
    types = _list(metadata, "token_type", int)
    if len(types) != num_tokens:
        raise ModelFilesError(
            f"tokenizer.ggml.token_type: {len(types)} entries for {num_tokens} tokens; the file is damaged"
        )
    return types


def _token_id(
    metadata: Mapping[str, Any], name: str, num_tokens: int, default: int | None = None
) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    value = metadata.get(key, default)
    if value is None:
        return None
    if not 0 <= int(value) < num_tokens:
        raise ModelFilesError(f"{key}: {value} is not among the {num_tokens} tokens; the file is damaged")
    return int(value)
