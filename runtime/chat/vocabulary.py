"""A vocabulary ready for use, whatever file it came from: see `gguf_vocabulary` and `folder_vocabulary`."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

WORD_START = "▁"
"""What SentencePiece vocabularies write for a space."""


@dataclass(frozen=True, slots=True)
class Added:
    """A token that is found in text by its spelling, before any merging. Special ones are control tokens."""

    token_id: int
    token: AddedToken

    @property
    def text(self) -> str:
        return str(self.token.content)

    @property
    def special(self) -> bool:
        return bool(self.token.special)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    backend: Backend
    """Finds every added token, control tokens included."""
    pieces: tuple[bytes, ...]
    """`[vocab_size]` what each id adds to the decoded bytes; empty for ids that no token has."""
    added: tuple[Added, ...]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool
    """Whether a plain prompt starts with the beginning token. Chat templates write their own."""
    drop_leading_space: bool
    """Whether decoded text starts with a space that the encoder had put there."""


def bytes_of_letters() -> dict[str, int]:
    """The alphabet in which byte-level vocabularies write bytes: printable Latin-1 stands for itself, every other
    byte for the next letter from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return letters


def byte_level_pieces(tokens: Sequence[str | None], literal_ids: frozenset[int]) -> tuple[bytes, ...]:
    """Bytes of each token of a byte-level vocabulary. `literal_ids`: tokens spelt as they are, not in the alphabet."""
    letters = bytes_of_letters()

    def piece(token_id: int, token: str | None) -> bytes:
        if token is None:
            return b""
        if token_id not in literal_ids:
            try:
                return bytes([letters[letter] for letter in token])
            except KeyError:
                pass  # a token that no text can produce; its spelling is the best that can be shown
        return token.encode()

    return tuple(piece(token_id, token) for token_id, token in enumerate(tokens))


def sentencepiece_pieces(tokens: Sequence[str | None]) -> tuple[bytes, ...]:
    """Bytes of each token of a SentencePiece vocabulary: `<0x0A>` is one byte, U+2581 is a space."""

    def piece(token: str | None) -> bytes:
        if token is None:
            return b""
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        return token.replace(WORD_START, " ").encode()

    return tuple(map(piece, tokens))
