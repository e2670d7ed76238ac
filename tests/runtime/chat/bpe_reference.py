"""Byte-level and SentencePiece BPE by the book: slow, in plain Python, sharing nothing with the code under test."""

import itertools
from collections.abc import Sequence
from typing import Any

import regex


def letters() -> dict[int, str]:
    kept = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    table, shift = {b: chr(b) for b in kept}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + shift)
            shift += 1
    return table


def cut(text: str, patterns: Sequence[str]) -> list[str]:
    """Each pattern cuts each piece into its matches and the gaps between them."""
    pieces = [text]
    for pattern in patterns:
        finer: list[str] = []
        for piece in pieces:
            end = 0
            for match in regex.finditer(pattern, piece):
                if match.end() == match.start():
                    continue
                finer += [piece[end : match.start()]] if match.start() > end else []
                finer.append(match.group())
                end = match.end()
            finer += [piece[end:]] if end < len(piece) else []
        pieces = finer
    return pieces


def merge(symbols: list[str], ranks: dict[tuple[str, str], float]) -> list[str]:
    """Join the best-ranked neighbours, leftmost first, until none is known."""
    while True:
        pairs = [(ranks[p], i) for i, p in enumerate(itertools.pairwise(symbols)) if p in ranks]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols = [*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :]]


def byte_level_ids(
    text: str, metadata: dict[str, Any], patterns: Sequence[str], ignore_merges: bool = False
) -> list[int]:
    """Ids by a vocabulary in GGUF's metadata."""
    table = letters()
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    left_right = [m.split(" ") for m in metadata["tokenizer.ggml.merges"]]
    ranks = {(left, right): float(i) for i, (left, right) in enumerate(left_right)}
    ids: list[int] = []
    for piece in cut(text, patterns):
        word = "".join(table[b] for b in piece.encode())
        if ignore_merges and word in vocab:
            ids.append(vocab[word])
        else:
            ids += [vocab[symbol] for symbol in merge(list(word), ranks)]
    return ids
